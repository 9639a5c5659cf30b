"""Chat templates render as in transformers, and use bounded memory and time."""

import signal
from datetime import datetime
from typing import Any

import pytest

from atelier.engine.config.error import ConfigError, DataError
from atelier.engine.data import chat_template
from atelier.engine.data.chat_template import ChatMessage, ChatTemplate
from tests.chat_templates import TALKS, TEMPLATES, WORDS

transformers = pytest.importorskip("transformers")


def theirs(source: str) -> Any:
    from tokenizers import Tokenizer, models

    plain = Tokenizer(models.BPE({"a": 0}, []))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=plain, chat_template=source, **WORDS)


def template(source: str, now: datetime | None = None) -> ChatTemplate:
    return ChatTemplate(source, "chat_template", WORDS, now)


together = pytest.mark.usefixtures("shared_sandbox")  # the others have a process of their own


@together
@pytest.mark.parametrize("talk", TALKS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_renders_as_in_transformers(name: str, talk: str) -> None:
    messages, other = TALKS[talk], theirs(TEMPLATES[name])
    for is_prompt in (False, True):
        how = {"tokenize": False, "add_generation_prompt": is_prompt}
        try:
            expected = other.apply_chat_template([dict(one) for one in messages], **how)
        except Exception as error:
            with pytest.raises(DataError, match="chat_template: "):
                template(TEMPLATES[name]).render(messages, is_prompt=is_prompt)
            assert "Conversation roles" in str(error)
        else:
            assert template(TEMPLATES[name]).render(messages, is_prompt=is_prompt).text == expected


PIECES = (
    "{% for m in messages %}\n  {{ m.content | trim }}\n{% endfor %}",
    "{{ messages | tojson }}{{ messages | tojson(indent=2) }}{{ 'ü<&' | tojson(ensure_ascii=true) }}",
    "{% for m in messages %}{% if loop.index0 == 1 %}{% continue %}{% endif %}{{ m.role }}{% endfor %}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "{% macro say(m) %}[{{ m['role'] }}]{% endmacro %}{% for m in messages %}{{ say(m) }}{% endfor %}",
    "{{ bos_token }}|{{ eos_token }}|{{ nothing }}|{{ tools is none }}|{{ documents is none }}",
    "{{ dict(a=1) }}{{ messages[0].items() | list }}{{ messages[-1].content.split(' ') }}{{ 2 ** 8 }}",
    "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
)


@together
@pytest.mark.parametrize("source", PIECES)
def test_what_templates_are_made_of_is_as_in_transformers(source: str) -> None:
    messages = TALKS["two turns"]
    expected = theirs(source).apply_chat_template([dict(one) for one in messages], tokenize=False)
    assert template(source).render(messages).text == expected


@together
def test_generation_blocks_are_where_transformers_finds_them() -> None:
    messages = TALKS["two turns"]
    found = template(TEMPLATES["generation"]).render(messages)
    assert found.spans is not None
    said = [found.text[begin:end] for begin, end in found.spans]
    assert said == [f"{one['content']}<|im_end|>" for one in messages if one["role"] == "assistant"]
    assert template(TEMPLATES["chatml"]).render(messages).spans is None


@together
def test_today_is_refused_by_name_and_a_given_date_is_written() -> None:
    source, talk = "{{ strftime_now('%d %b %Y') }}", TALKS["one turn"]
    with pytest.raises(DataError, match=r"asks for today's date \(strftime_now\).*chats.date=2024-07-26"):
        template(source).render(talk)
    assert template(source, datetime(2024, 7, 26)).render(talk).text == "26 Jul 2024"


HOSTILE = {
    "{{ ''.__class__.__mro__ }}": "unsafe|__class__",
    "{{ messages.append(1) }}": "unsafe|not safely",
    "{% for i in range(10 ** 9) %}{% endfor %}": "range",
    "{{ 9 ** 9 ** 9 }}": "power",
    "{{ 'x' * 10 ** 11 }}": "memory",
    "{{ 'x' * 10 ** 8 }}": "characters",
    "{{ ' '.ljust(10 ** 11) }}": "memory",
    "{% set n = namespace(x='xx') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}": "memory",
    "{% set ns = namespace(_x=1) %}": "_x",
    "{% include '/etc/passwd' %}": "loader",
    "{{ raise_exception('no system role here') }}": "no system role here",
    "{{ messages[0].content / 0 }}": "TypeError",
    "{{ nothing.at.all }}": "undefined",
    "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}": "RecursionError",
}  # fmt: skip


@together
@pytest.mark.parametrize("source", HOSTILE)
def test_a_hostile_template_ends_in_one_line(source: str) -> None:
    with pytest.raises((DataError, ConfigError), match=HOSTILE[source]) as caught:
        template(source).render(TALKS["one turn"])
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


ENDLESS = {
    "loops": "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}",
    "one operation of C": "{{ ([[1]] * (messages | length * 4999999)) | sum(start=[]) }}",
    "long texts": "{% for i in range(99999) %}{% set n = ('x' * (9999999 + i)).count('xy') %}{% endfor %}",
}


def test_endless_work_while_a_template_is_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "CPU_S", 0.2)
    with pytest.raises(
        ConfigError, match=r"is not a chat template \(takes more than 0.2 seconds of processor"
    ):
        template("{{ ([[1]]*9999999)|sum(start=[]) }}")  # Jinja computes what is constant at once


@pytest.mark.parametrize("work", ENDLESS)
def test_endless_work_is_ended(monkeypatch: pytest.MonkeyPatch, work: str) -> None:
    monkeypatch.setattr(chat_template, "CPU_S", 0.1)
    endless = template("{% if messages | length > 1 %}" + ENDLESS[work] + "{% endif %}{{ messages[0].role }}")
    talks = (TALKS["open"], TALKS["one turn"])
    endless.prepare([(talk, False) for talk in talks])
    for _ in range(chat_template.MOST_ENDS - 1):
        with pytest.raises(DataError, match=r"chat_template: takes more than 0\.1 seconds of processor time"):
            endless.render(TALKS["one turn"])
        assert endless.render(TALKS["open"]).text == "user"
    with pytest.raises(ConfigError, match="of processor time, 3 times; fix it"):
        endless.render(TALKS["one turn"])


def test_ctrl_c_ends_a_rendering_at_once() -> None:
    endless = template(ENDLESS["one operation of C"])
    child = endless._process._process
    assert child is not None
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    with pytest.raises(KeyboardInterrupt):
        endless.render(TALKS["one turn"])
    signal.signal(signal.SIGALRM, before)
    assert child.returncode == -signal.SIGKILL


@together
def test_renderings_that_are_prepared_together_are_those_of_one_at_a_time() -> None:
    asked = [(talk[:n], n % 2 > 0) for talk in TALKS.values() for n in range(1, len(talk) + 1)]
    for name, source in TEMPLATES.items():
        alone, at_once = template(source), template(source)
        at_once.prepare(asked)
        for messages, is_prompt in asked:
            ends = []
            for one in (alone, at_once):
                try:
                    ends.append(one.render(messages, is_prompt=is_prompt))
                except DataError as error:
                    ends.append(str(error))
            assert ends[0] == ends[1], name


@together
@pytest.mark.parametrize("source", ["{% for %}", "{{ a | random }}", "{% endif %}", "{{ 'x", "x" * (1 << 21)])
def test_what_is_no_template_is_refused_when_it_is_read(source: str) -> None:
    with pytest.raises(ConfigError, match="chat_template: "):
        template(source)


@together
def test_messages_are_not_changed_by_a_template() -> None:
    talk: list[ChatMessage] = [{"role": "user", "content": "x"}]
    with pytest.raises(DataError):
        template("{{ messages[0].update(role='system') }}").render(talk)
    assert talk == [{"role": "user", "content": "x"}]


@together
def test_half_a_surrogate_pair_of_a_template_is_its_fault() -> None:
    with pytest.raises(DataError, match="chat_template: writes half of a surrogate pair"):
        template("{{ messages[0].content }}\ud800").render([{"role": "user", "content": "x"}])
