"""A plan explains a change with the user's own keys and values."""

from typing import Any

from atelier.flows.run.reasons import reasons_of, text_of
from atelier.infra.dag import Product
from atelier.infra.store.run_manifest import Row, comparable, given


def product(step: int, trunk: int, content: str, files: int = 3) -> Product:
    origin = {"step": "train.steps", "trunk_step": "train.steps"}
    origin |= {"files": "data.source", "content": "data.source"}
    identity: dict[str, Any] = {"step": step, "files": files, "content": content * 16}
    detail: dict[str, Any] = {"trunk_step": trunk, "lr": 0.1}
    return Product(
        kind="model", name="m", version=1, identity=identity, parents={}, detail=detail, origin=origin
    )


def told(before: Product, now: Product) -> list[str]:
    known = {"train": Row(fingerprint="0" * 64, identity=comparable(before))}
    return [text_of(reason) for reason in reasons_of("train", now, known)]


def test_of_several_numbers_of_one_key_the_one_that_was_given_is_named() -> None:
    assert told(product(24, 18, "ab"), product(30, 22, "ab")) == ["train.steps: 24 -> 30"]
    assert told(product(24, 18, "ab"), product(24, 22, "ab")) == ["train.steps: 18 -> 22"]  # nothing else did
    assert given(product(24, 18, "ab"))["train.steps"] == 24


def test_a_digest_is_told_as_other_content() -> None:
    assert told(product(24, 18, "ab"), product(24, 18, "cd")) == ["data.source: the content differs"]
    assert told(product(24, 18, "ab"), product(24, 18, "cd", files=4)) == ["data.source: the content differs"]
    assert told(product(24, 18, "ab"), product(24, 18, "ab", files=4)) == ["data.source: 3 -> 4"]
    assert told(product(24, 18, "ab"), product(24, 18, "ab")) == ["its files are gone"]
