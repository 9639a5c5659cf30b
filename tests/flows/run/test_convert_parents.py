"""Conversions of several parents, planned: the choice of parents, and refused combinations."""

import json
from pathlib import Path
from typing import Any

import pytest

from atelier.engine.config.base import fingerprint
from atelier.engine.config.error import ConfigError
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.record import FileEntry, Record, identify
from atelier.flows.run.compose import compose
from atelier.infra.store.existing_model import adapter_of, check_ids, existing_model, looking_in
from atelier.infra.store.store import Store
from tests.flows.run.test_order import nodes, parent
from tests.stored_models import store_with

__all__ = ["parent"]
SPEC = GPT(num_layers=2, hidden=32, num_heads=2, vocab=64)


def planned(*words: str) -> Any:
    document = compose("convert", ["experiment=tiny", "init=parent", *words]).document
    return nodes("convert", document)["convert"]


@pytest.mark.usefixtures("parent")
def test_a_mean_is_of_its_parents_and_weights_and_not_of_the_names_of_the_models() -> None:
    node = planned("convert=average", "convert.models=[a,b]")
    assert list(node.inputs) == ["model", "model.1", "model.2", "tokens"]
    product = node.products["model"]
    assert product.parents["model.2"] == fingerprint(["model", "b"])
    assert product.identity == {"rule": {"kind": "average", "weights": []}}
    found = {
        planned("convert=average", *words).products["model"].fingerprint
        for words in (
            ("convert.models=[a,b]",),
            ("convert.models=[a]",),
            ("convert.models=[a,c]",),
            ("convert.models=[a,b]", "convert.weights=[1,1,2]"),
        )
    }
    assert len(found) == 4


@pytest.mark.usefixtures("parent")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("convert=average", "convert.models=[a,a]"),
            "convert.models: a is given twice; use convert.weights",
        ),
        (("convert=average", "convert.models=[parent]"), "convert.models: parent is given twice"),
        (("convert=average",), "convert.models: is empty"),
        (("convert=merge_adapter",), "convert.adapter: is empty"),
        (("convert=merge_adapter", "convert.adapter=none"), "convert.adapter: no adapter called 'none'"),
    ],
)
def test_parents_that_do_not_go_together_are_refused(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        planned(*words)


def kept_adapter(store: Store, name: str, base: str, **summary: Any) -> None:
    parents = {"base": base}
    found = identify("adapter", 1, {"name": name}, parents)
    record = Record(
        kind="adapter", name=name, fingerprint=found, version=1, identity={"name": name}, parents=parents,
        files=(), summary=summary,
    ).sealed()  # fmt: skip
    place = Path(store.address("adapter", found))
    place.mkdir(parents=True)
    (place / "record.json").write_text(record.text())


def test_an_adapter_belongs_to_the_weights_that_it_was_tuned_on(tmp_path: Path) -> None:
    store = store_with(tmp_path, SPEC, "one")
    store_with(tmp_path, SPEC, "two")
    looking_in(store)
    one, two = existing_model("one", ""), existing_model("two", "")
    kept_adapter(store, "tuned", one.reference.fingerprint, rank=4)
    kept_adapter(store, "prompt", one.reference.fingerprint, vectors=20)
    kept_adapter(store, "orphan", "0" * 64, rank=4)
    assert adapter_of(one, "tuned", "convert.adapter").name == "tuned"
    digits = one.reference.fingerprint[:8]
    fault = f"tuned was tuned on one {digits}, whose weights differ from two .* init={digits}"
    with pytest.raises(ConfigError, match=fault):
        adapter_of(two, "tuned", "convert.adapter")
    with pytest.raises(
        ConfigError, match=r"orphan was tuned on a model 00000000, whose .* differ from one .* tuned on"
    ):
        adapter_of(one, "orphan", "convert.adapter")
    with pytest.raises(ConfigError, match="prompt is a soft prompt and cannot be merged into matrices"):
        adapter_of(one, "prompt", "convert.adapter")


def test_an_adapter_of_the_same_bytes_under_another_fingerprint_is_the_model_s(tmp_path: Path) -> None:
    """Taken in twice under two names, a model has two fingerprints."""
    store = store_with(tmp_path, SPEC, "one")
    store_with(tmp_path, SPEC, "two")
    for name in ("one", "two"):
        record = store.resolve(name, "model")
        entry = FileEntry(path="payload-1/model.safetensors", bytes=2, sha256="1" * 64)
        sealed = record.model_copy(update={"files": (*record.files, entry)}).sealed()
        (Path(store.address("model", record.fingerprint)) / "record.json").write_text(sealed.text())
    looking_in(store)
    kept_adapter(store, "tuned", store.resolve("one", "model").fingerprint, rank=4)
    assert adapter_of(existing_model("two", ""), "tuned", "").name == "tuned"


def test_models_of_two_tokenizers_are_told_apart(tmp_path: Path) -> None:
    store = store_with(tmp_path, SPEC, "one")
    looking_in(store)
    one = existing_model("one", "")
    check_ids(one, one, "convert.models")
    record = store.resolve("one", "model")
    again = identify("tokenizer", 1, {"name": "other"}, {})
    changed = record.model_copy(
        update={
            "name": "two", "parents": {"tokenizer": again},
            "fingerprint": identify("model", 1, record.identity, {"tokenizer": again}),
        }
    ).sealed()  # fmt: skip
    place = Path(store.address("model", changed.fingerprint))
    (place / "payload-1").mkdir(parents=True)
    (place / "record.json").write_text(changed.text())
    (place / "payload-1" / "config.json").write_text(json.dumps({"model": SPEC.arguments()}))
    with pytest.raises(ConfigError, match=r"convert.models: the tokenizer of two is .*, that of one .*"):
        check_ids(one, existing_model("two", ""), "convert.models")
