"""The first difference of two files: tensor, key, line or byte."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from atelier.engine.io import first_difference as module
from atelier.engine.io.first_difference import first_difference


def two(tmp_path: Path, name: str, one: bytes, other: bytes) -> tuple[str, str]:
    for folder, content in (("one", one), ("other", other)):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).write_bytes(content)
    return str(tmp_path / "one" / name), str(tmp_path / "other" / name)


def weights(tmp_path: Path, one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> tuple[str, str]:
    places = [str(tmp_path / f"{name}.safetensors") for name in ("one", "other")]
    for place, tensors in zip(places, (one, other), strict=True):
        save_file(tensors, place)
    return places[0], places[1]


def test_equal_files_have_none(tmp_path: Path) -> None:
    assert first_difference(*two(tmp_path, "a.bin", b"abc" * 100, b"abc" * 100)) == ""


def test_of_weights_the_tensor_with_the_amount_is_told(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    one = {"a": rng.normal(size=(3, 4)).astype(np.float32), "b": rng.normal(size=5).astype(np.float32)}
    other = {name: value.copy() for name, value in one.items()}
    other["b"][2] += 0.5
    said = first_difference(*weights(tmp_path, one, other))
    assert said.startswith("tensor b: 1 of 5 elements differ, by at most 0.5")
    assert first_difference(*weights(tmp_path, one, {"a": one["a"]})) == "tensor b is in the first alone"
    other = {"a": one["a"].reshape(4, 3), "b": one["b"]}
    said = first_difference(*weights(tmp_path, one, other))
    assert said == "tensor a has another shape or type: F32[3, 4], F32[4, 3]"


def test_of_integers_the_number_of_elements_is_told(tmp_path: Path) -> None:
    one = {"ids": np.arange(8, dtype=np.int64)}
    other = {"ids": np.arange(8, dtype=np.int64)}
    other["ids"][:2] = 9
    assert first_difference(*weights(tmp_path, one, other)) == "tensor ids: 2 of 8 elements differ"


@pytest.mark.parametrize(
    ("name", "one", "other", "says"),
    [
        ("a.json", '{"a": 1, "b": {"c": 2}}', '{"a": 1, "b": {"c": 3}}', "key b.c: 2 | 3"),
        ("a.json", '{"a": 1}', '{"a": 1, "b": 2}', "key b: None | 2"),
        ("a.json", '{"a": 1}', '{"a":  1}', "byte 6"),
        ("a.jsonl", "1\n2\n3\n", "1\n2\n4\n", "line 3"),
        ("a.txt", "x\ny", "x\nyz", "line 2"),
        ("a.bin", "abcd", "abxd", "byte 2 of 4 (4 in the other)"),
        ("a.bin", "abcd", "ab", "byte 2 of 4 (2 in the other)"),
        ("a.json", "no json", "no jso?", "byte 6 of 7 (7 in the other)"),
        ("a.safetensors", "no weights", "no weighty", "byte 9 of 10 (10 in the other)"),
    ],
)  # fmt: skip
def test_the_place_is_that_of_the_format(tmp_path: Path, name: str, one: str, other: str, says: str) -> None:
    assert first_difference(*two(tmp_path, name, one.encode(), other.encode())) == says


def test_a_difference_behind_the_first_block_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK", 64)
    one = bytes(range(256)) * 4
    other = one[:777] + b"?" + one[778:]
    assert first_difference(*two(tmp_path, "a.bin", one, other)).startswith("byte 777 of 1024")
    same = {"a": np.zeros(100, np.float32), "b": np.zeros(100, np.float32)}
    changed = {"a": same["a"], "b": same["b"].copy()}
    changed["b"][[40, 90]] = [1.0, -3.0]
    assert (
        first_difference(*weights(tmp_path, same, changed))
        == "tensor b: 2 of 100 elements differ, by at most 3"
    )
