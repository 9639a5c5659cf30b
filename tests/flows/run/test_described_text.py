"""Settings of units, attributes and taggers: refused where no objective reads them, in no other identity."""

from pathlib import Path

import pytest

from atelier.engine.config import annotations
from atelier.engine.config.data import Data
from atelier.engine.config.error import ConfigError
from atelier.flows.run.compose import compose
from atelier.flows.run.draw import collect_nodes
from atelier.infra.dag import Node
from atelier.infra.store.store import Store

TINY = ("experiment=tiny", "tracker=none")
CHARACTERS = "data.units.words=characters"


def nodes(root: Path, flow: str, *words: str) -> dict[str, Node]:
    found = collect_nodes(compose(flow, [*TINY, *words]), Store(str(root)))
    return {node.name: node for node in found}


def fingerprint(node: Node) -> str:
    [product] = node.products.values()
    return product.fingerprint


@pytest.mark.parametrize(
    ("flow", "word", "problem"),
    [
        ("cpm2", CHARACTERS, r"data\.units\.words: does nothing in the flow cpm2"),
        ("cpm2", "+language=chinese", r"data\.units: words=characters does nothing.*knowledge, mlm"),
        ("pretrain", CHARACTERS, r"data\.units: words=characters does nothing"),
        ("pretrain", "data.attributes.keywords=5", r"data\.attributes: keywords=5 does .*add one.*: control"),
        ("distill", "+tagger@data.taggers=german", r"data\.taggers: .* does nothing.*: knowledge"),
        (
            "pretrain",
            "+language=chinese",
            r"data\.units: .* leave it out \(after \+language: '~data\.units'\)",
        ),
        (
            "corpus",
            "data.attributes.keywords=5",
            r"data\.attributes\.keywords: does nothing in the flow corpus",
        ),
    ],
)
def test_what_no_objective_reads_is_refused(tmp_path: Path, flow: str, word: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        nodes(tmp_path, flow, word)


def test_a_language_is_accepted_without_the_sections_that_nothing_reads(tmp_path: Path) -> None:
    without = ("~data.units", "~data.attributes", "~data.taggers")
    plain, chinese = (nodes(tmp_path, "pretrain", *words) for words in ((), ("+language=chinese", *without)))
    assert fingerprint(plain["train"]) == fingerprint(chinese["train"])


def test_the_version_of_jieba_is_in_the_identity_of_what_it_divides_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("titan", "+language=chinese", "data.units.words=jieba")
    found = []
    for version in ("0.41", "0.42"):
        monkeypatch.setattr(annotations, "find_spec", lambda name: name)
        monkeypatch.setattr(annotations, "version", lambda name, known=version: known)
        found.append(nodes(tmp_path, *words))
    moved = {name for name in found[0] if found[0][name].products != found[1][name].products}
    assert {"encode", "extract"} <= moved and not moved & {"curate", "learn_tokenizer", "describe"}


def test_a_plan_refuses_words_of_jieba_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(annotations, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"data\.units\.words: needs the package jieba.*pip install jieba"):
        nodes(tmp_path, "titan", "+language=chinese", "data.units.words=jieba")
    with pytest.raises(ConfigError, match=r"data\.attributes\.words: needs the package jieba"):
        nodes(tmp_path, "titan", "data.attributes.words=jieba")


def test_changed_meanings_have_new_versions_and_others_the_old_identity() -> None:
    data = Data.model_validate({"source": "x", "attributes": {"keywords": 5}})
    assert data.attributes.as_identity() == {"keywords": 5}
    for field in ({"words": "characters"}, {"words": "jieba"}, {"source": "labels.jsonl"}):
        spec = annotations.Described.model_validate(field)
        assert spec.as_identity()["version"] == 2
    assert annotations.MaskingUnits(words="characters").as_identity()["version"] == 2
