"""Hostile texts in every field of a form: refused in one harmless line, or kept unchanged."""

from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from atelier.engine.config.error import UNSEEN, ConfigError
from atelier.flows.deployments.forms import form, to_overrides
from atelier.flows.run.compose import compose

SECRET = "planted-a7f3c9"
FREE = ("data_source", "data_field", "init")  # fields that take any text


def read_back(word: str) -> Any:
    """A word's value, as Hydra reads it."""
    return OverridesParser.create().parse_override(word).value()


def refusal(flow: str, parameters: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        to_overrides(flow, parameters)
    return str(caught.value)


RESOLVERS = [
    "${oc.env:ATELIER_SECRET}",
    "$\\{oc.env\\:ATELIER_SECRET\\}",
    "\\${oc.env:ATELIER_SECRET}",
    "${ oc.env : ATELIER_SECRET }",
    "${oc.env:'ATELIER_SECRET'}",
    "${oc.${a}:ATELIER_SECRET}",
    "${${x}:ATELIER_SECRET}",
    "${${a['}']}:ATELIER_SECRET}",
    "${oc.decode:${oc.env:ATELIER_SECRET}}",
    "${oc.create:{a:1}}",
    "${oc.select:hydra}",
    "${oc.dict.values:train}",
    "${hydra:runtime.cwd}",
    "${now:%Y}",
    "a${oc.env:ATELIER_SECRET}b",
    "{a:{b:[${oc.env:ATELIER_SECRET}]}}",
    "[[[$\\{oc.env:ATELIER_SECRET}]]]",
    "'$\\{oc.env:ATELIER_SECRET}'",
    '"${oc.env:ATELIER_SECRET}"',
    "${oc.env:ATELIER_SECRET",
    "${",
]
CLASSES = [
    "_target_=os.system",
    "_target_",
    "{_target_: os.system, _args_: [id]}",
    "[{_target_: builtins.eval}]",
    "{a: {b: {_target_: posix.system}}}",
    "model._target_=os.system",
    "+train._recursive_=true",
    "{_partial_: true}",
    "_convert_=all",
]
HYDRA_WORDS = [
    "hydra.searchpath=[file:///tmp]",
    "hydra/launcher=basic",
    "+hydra.run.dir=/tmp/x",
    "++hydra.job.chdir=true",
    "~hydra",
    "~hydra.run",
    "hydra.run.dir=/tmp",
    "/hydra/launcher=basic",
    "//hydra.run.dir=1",
    " hydra.run.dir=1",
    "hydra=null",
    "hydra@x=y",
    "hydra:x=y",
    "data@hydra=small",
    "+data@hydra.run=small",
    "+experiment@hydra=tiny",
    "model@model:hydra=gpt_nano",
]
PATHS = [
    "../../etc/passwd",
    "model=../../etc/passwd",
    "model=/etc/passwd",
    "model=..",
    "model=[../optim/adamw]",
    "model=[gpt_nano,/etc/passwd]",
    "model=['../../x']",
    "model=gpt_nano/../gpt_mini",
    "model=gpt_nano.yaml",
    "model=..\\..\\x",
    "../model=gpt_nano",
    "/=base",
    "+/=base",
    "model/../data=small",
    "experiment@_global_=../titan",
    "file:///etc/passwd\x00.yaml",
    "+role@roles.x=../role/student",
    "pool=../pool/local",
]
PAGES = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "javascript:alert(1)",
    "[click](javascript:alert(1))",
    "{{ constructor.constructor('x')() }}",
    "{{7*7}}",
    "<svg/onload=alert(1)>",
    "\"'><b>",
]
TAGS = [
    "!!python/object/apply:os.system ['id']",
    "!!python/object:subprocess.Popen",
    "!!python/name:os.environ",
    "&a [*a, *a]",
    "!include /etc/passwd",
    "--- !!set",
]
LETTERS = [
    "a\x00b",
    "train.seed=1\x00",
    "a\nb",
    "train.seed=1\nhydra.run.dir=/tmp",
    "a\r\nSet-Cookie: x",
    "\x1b[2J",
    "\x07\x08",
    "\u202egnp.exe",
    "a\u2066b\u2069",
    "\ufeffx",
    "\u2028x",
    "\ud800",
    "\udcff=1",
    "\u212aey=1",
    "\u0131nit=1",
    "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢",
]
SHELL = [
    "; rm -rf /",
    "$(touch /tmp/x)",
    "`id`",
    "| cat /etc/passwd",
    "' OR 1=1; --",
    "'; DROP TABLE flows; --",
    "%s%s%s%n",
    "{0.__class__.__init__.__globals__}",
    "{self.__dict__}",
    "%(asctime)s",
    "\\",
    "'",
    '"',
    "=",
    "~",
    "@",
    "+++a=1",
    "a=b=c=d",
    "--config-dir=/tmp",
    "-m",
    "--help",
    "--multirun",
    "__import__('os').environ",
]
SIZES = [
    "x" * 2_000_000,
    "a=" + "[" * 300,
    "a=" + "[" * 300 + "]" * 300,
    "train.seed=" + "{a:" * 400 + "1" + "}" * 400,
    "a=" + "(" * 5000,
    "train.seed=" + "9" * 5000,
    "train.steps=1e400",
    "train.seed=range(1,1000000000000)",
    "train.seed=shuffle(range(1,9))",
    "train.seed=glob(*)",
    "train.seed=choice(1,2)",
    "\\" * 9000,
    "a" + ".b" * 4000 + "=1",
    "@" * 9000,
    "${" * 4000,
]
HOSTILE = [*RESOLVERS, *CLASSES, *HYDRA_WORDS, *PATHS, *PAGES, *TAGS, *LETTERS, *SHELL, *SIZES]


def is_harmless(line: str) -> bool:
    ours = line.replace("<name>", "").replace("<flow>", "")
    return SECRET not in line and "<" not in ours and not UNSEEN.search(line) and len(line) < 2000


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("ATELIER_SECRET", SECRET)
    return SECRET


@pytest.mark.parametrize("flow", ["titan", "pretrain"])
def test_no_hostile_text_in_any_field_does_more_than_be_refused(flow: str, secret: str) -> None:
    assert len(HOSTILE) >= 100 and len(set(HOSTILE)) == len(HOSTILE)
    fields = [name for name in form(flow)["properties"] if name not in ("overrides", "code", "sweep")]
    for text in HOSTILE:
        for shape in (text, [text], {"a": text}, [[text]]):
            for name in (*fields, "overrides", "code", "sweep"):
                if (shape is text and name in FREE) or (shape == [text] and name == "overrides"):
                    continue
                if name == "name" and shape is text and text.isidentifier() and len(text) < 100:
                    continue  # a name like any other
                assert is_harmless(refusal(flow, {name: shape})), (name, text[:60])
        assert is_harmless(refusal(flow, {text: "x"}))
        for name in FREE:
            try:
                [word] = to_overrides(flow, {name: text})
            except ConfigError as error:
                assert is_harmless(str(error))
            else:
                assert read_back(word) == text and "${" not in text


@pytest.mark.parametrize("flow", ["titan", "pretrain"])
def test_no_hostile_override_does_more_than_be_refused(flow: str, secret: str) -> None:
    for text in HOSTILE:
        with pytest.raises(ConfigError) as caught:
            compose(flow, to_overrides(flow, {"overrides": [text]}), from_form=True)
        assert secret not in str(caught.value)
        for word in (f"data.source={text}", f"model.kind={text}", f"data.blend={text}"):
            try:
                [kept] = to_overrides(flow, {"overrides": [word]})
            except ConfigError as error:
                assert is_harmless(str(error))
            else:
                assert (
                    kept == word and SECRET not in str(read_back(word)) and "${" not in str(read_back(word))
                )


@pytest.mark.parametrize("from_form", [True, False])
@pytest.mark.parametrize("text", RESOLVERS)
def test_no_resolver_reads_the_environment(text: str, from_form: bool, secret: str) -> None:
    for word in (f"data.source={text}", f"data.source='{text}'", f"+data.blend={{a:{{source:{text}}}}}"):
        try:
            document = compose("corpus", [word], from_form=from_form).document
        except ConfigError as error:
            assert secret not in str(error)
        else:
            assert secret not in str(document)


@pytest.mark.parametrize("text", [text for text in PATHS if text.startswith("model=")])
def test_an_option_is_a_file_of_its_group_on_the_command_line_too(text: str) -> None:
    with pytest.raises(ConfigError, match="no option"):
        compose("pretrain", [text])


def test_what_is_nested_or_long_beyond_reading_is_one_line_on_the_command_line_too() -> None:
    for text in ("train.seed=" + "[" * 300 + "]" * 300, "train.seed=" + "9" * 5000):
        with pytest.raises(ConfigError) as caught:
            compose("pretrain", [text])
        assert len(str(caught.value)) < 300


def test_tasks_are_given_their_pools_in_a_form() -> None:
    words = to_overrides("pretrain", {"experiment": "tiny", "pool_tasks": ["train=cpu", "", "score=local"]})
    assert words == ["experiment=tiny", "pool.tasks={train: cpu,score: local}"]
    assert {*compose("pretrain", words, from_form=True).task_pools} == {"train", "score"}
    assert "names train twice" in refusal("pretrain", {"pool_tasks": ["train=cpu", "train=local"]})
    for hostile in ("train", "train=a b", "train=${oc.env:HOME}", "train={x: y}", "train=cpu,score: gpu"):
        assert "must match" in refusal("pretrain", {"pool_tasks": [hostile]})
