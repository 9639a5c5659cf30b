"""Values from Python keep their type, or are refused as on the command line."""

from pathlib import Path
from typing import Any, cast

import numpy
import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import example, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from atelier.engine.config.document import section_of
from atelier.engine.config.error import UNSEEN, ConfigError
from atelier.flows.run.catalog import CONF
from atelier.flows.run.compose import compose
from atelier.flows.run.python_values import NOT_TEXT, as_words, text_of

PARSER = OverridesParser.create()
TEXT = st.text() | st.text(alphabet="'\"\\ab,{}[]:= $\n\t()1e-.#", max_size=12)
NAME = st.from_regex(r"[a-z_]{1,6}", fullmatch=True).filter(lambda name: name not in NOT_TEXT)
LEAF = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT
VALUE = st.recursive(
    LEAF, lambda one: st.lists(one, max_size=4) | st.dictionaries(NAME, one, max_size=3), max_leaves=6
)


@settings(max_examples=400, deadline=None)
@given(VALUE)
@example("1e-3")
@example("true")
@example("null")
@example("a,b")
@example("it's")
@example("\\'")
@example("\\\n")
@example(1e-320)
def test_hydra_reads_the_value_that_was_given(value: Any) -> None:
    text = text_of(value, "key")
    if "${" in text:
        return  # a reference, or refused
    document = OmegaConf.create({"key": None})
    OmegaConf.update(document, "key", PARSER.parse_override(f"++key={text}").value())
    found = OmegaConf.to_container(document, resolve=True)
    assert found == {"key": value} and type(found["key"]) is type(value)


@pytest.mark.parametrize(
    ("overrides", "values", "words"),
    [
        (("experiment=tiny", "train.steps=8"), {}, ["experiment=tiny", "train.steps=8"]),
        ((), {"experiment": "tiny", "train": {"steps": 8}}, ["experiment=tiny", "train.steps=8"]),
        (({"train.steps": 8},), {"name": "a b"}, ["train.steps=8", "name='a b'"]),
        ((), {"experiment": ["laptop", "tiny"]}, ["experiment=[laptop,tiny]"]),
        (({"+role@roles.b": "student", "roles.b": {"optim": {"lr": 1e-3}}},), {},
         ["+role@roles.b=student", "roles.b.optim.lr=0.001"]),
        ((), {"data": {"source": Path("a/b.txt")}}, ["data.source=a/b.txt"]),
        ((), {"finetune": {"models": ["a", "b"]}}, ["finetune.models=[a,b]"]),
        ((), {"train": {"seed": numpy.int64(3), "z": numpy.float64(0.1)}}, ["train.seed=3", "train.z=0.1"]),
        ((), {"model": {}, "x": {}}, ["x={}"]),
    ],
)  # fmt: skip
def test_words_mappings_and_keywords_become_words_in_this_order(
    overrides: tuple[Any, ...], values: dict[str, Any], words: list[str]
) -> None:
    assert as_words(overrides, values) == words


def test_the_later_one_counts() -> None:
    frozen = compose("pretrain", as_words(("experiment=tiny", "train.steps=8"), {"train": {"steps": 9}}))
    assert section_of(frozen.document["train"])["steps"] == 9


@pytest.mark.parametrize(
    "text", ["a,b", "it's", '"', "x: {y}", "[1]", "1e-3", "true", "null", "a=b", " a ", "\\"]
)
def test_a_text_of_a_configuration_is_what_was_given(text: str) -> None:
    words = as_words(("experiment=tiny",), {"data": {"field": text}})
    assert section_of(compose("pretrain", words).document["data"])["field"] == text


def test_a_reference_is_the_value_of_its_key() -> None:
    words = as_words(("experiment=tiny",), {"data": {"field": "seed-${train.seed}"}})
    assert section_of(compose("pretrain", words).document["data"])["field"] == "seed-1"


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"data": {"field": "${oc.env:HOME}"}}, "calls a resolver"),
        ({"data": {"field": "\\${oc.env:HOME}"}}, "calls a resolver"),
        ({"data": {"field": "_target_"}}, "_target_ is not allowed"),
        ({"hydra.run.dir": "x"}, "Hydra's own settings"),
        ({"model": "../../etc/passwd"}, "no option"),
        ({"model": "gpt_nano,gpt_mini"}, "several values are a sweep"),
        ({"model": "[gpt_nano]] x"}, "model"),
        ({"model": ["gpt_nano", "a]b"]}, "there is no option"),
        ({"model": 3}, "is a group, not a value"),
        ({"model": None}, "is a group, not a value"),
        ({"train.steps=3,x": 1}, "is not a key"),
        ({"train.steps": 10**5000}, "too many digits"),
        ({"train.steps": int("9" * 2000)}, "1000 digits"),
        ({"train.steps": object()}, "cannot be a object"),
        ({"train.steps": {1, 2}}, "cannot be a set"),
        ({"train.steps": "8, x"}, "train.steps"),
        ({"train": {"st eps": 1}}, "is not a key"),
        ({"data.list": [{"a b": 1}]}, "is not a key"),
        ({"+role@roles.b": {"kind": "x"}}, "takes no mapping"),
        ({"x\x1b[2J": 1}, "is not a key"),
        ({"nobody": 1}, "no such key"),
        ({"train": {"sttps": 1}}, "train.sttps: no such key"),
    ],
)  # fmt: skip
def test_what_cannot_be_said_is_refused_in_one_short_line(value: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose("pretrain", as_words(("experiment=tiny",), value))
    said = str(caught.value)
    assert says in said and len(said) < 800 and not UNSEEN.search(said)


def test_a_value_within_itself_is_refused() -> None:
    inside: dict[str, Any] = {}
    inside["a"] = inside
    endless: list[Any] = []
    endless.append(endless)
    for value in (inside, endless):
        with pytest.raises(ConfigError, match=r"nested deeper|takes no mapping"):
            as_words((), {"name": value})


def test_a_program_that_composes_with_hydra_keeps_its_own() -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        mine = GlobalHydra.instance().hydra
        compose("pretrain", ["experiment=tiny"])
        assert mine is not None and GlobalHydra.instance().hydra is mine
    assert GlobalHydra.instance().hydra is None


def test_what_is_no_override_is_refused() -> None:
    with pytest.raises(ConfigError, match="give 'key=value'"):
        as_words(cast(Any, (3,)), {})
