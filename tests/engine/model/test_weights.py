"""Weights in files: the bytes of one file, shards and their index, reading one at a time."""

import json
import os
import random
import weakref
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from atelier.engine.config.error import AtelierError, DamageError
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.record import FileEntry
from atelier.engine.io.artifact import open_input
from atelier.engine.io.storage import hashed
from atelier.engine.io.tensorfile import ELEMENT_BYTES
from atelier.engine.io.weight_files import INDEX, WEIGHTS, plan_files, weights_digest
from atelier.engine.model.load import build, initialise, read_model, read_weights
from atelier.engine.model.weights import (
    _TYPES,
    METADATA,
    StoredWeights,
    Weight,
    entries_of,
    entry_of,
    in_memory,
    write_files,
)
from tests.engine.trainings import artifact, model_files

SPEC = GPT(num_layers=3, hidden=32, num_heads=4, num_kv_heads=2, vocab=50, norm="layer", tied=False)
SEED = int(os.environ.get("ATELIER_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
NUM = 120
MANY = 6000  # bytes in a shard of the model: eleven shards or so


def weights_of(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    model = build(SPEC).to(dtype)
    initialise(model, seed=1, name="role")
    return {name: weight.detach() for name, weight in model.named_parameters()}


def written(weights: dict[str, Tensor], most: int = 1 << 40) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    live = in_memory(weights)
    write_files(
        plan_files(entries_of(live), most), live, lambda name, parts: files.update({name: b"".join(parts)})
    )
    return files


def same(one: Any, other: Any) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


def drawn(rng: random.Random) -> dict[str, Tensor]:
    """Tensors of any type, shape and name."""
    found = {}
    for _ in range(rng.randrange(1, 20)):
        name = "".join(rng.choice('abz.09_"é\\\n') for _ in range(rng.randrange(1, 9)))
        shape = [rng.randrange(0, 4) for _ in range(rng.randrange(0, 4))]
        found[name] = torch.randint(0, 2, shape).to(_TYPES[rng.choice(list(ELEMENT_BYTES))])
    return found


def test_one_file_has_the_bytes_of_the_librarys_own_writer() -> None:
    rng = random.Random(SEED)
    for number in range(NUM):
        tensors = drawn(rng)
        assert written(tensors) == {WEIGHTS: safetensors.torch.save(tensors, METADATA)}, (SEED, number)


def test_a_model_of_one_file_has_the_bytes_that_it_always_had() -> None:
    files = model_files(weights_of(), SPEC)
    assert list(files) == [WEIGHTS, "config.json"]
    assert files[WEIGHTS] == safetensors.torch.save(weights_of(), {"format": "pt"})


def test_what_is_written_is_gathered_one_weight_at_a_time() -> None:
    alive: list[weakref.ref[Tensor]] = []

    def gather() -> Tensor:
        assert not any(each() is not None for each in alive), "the weight before is still held"
        whole = torch.ones(64)
        alive.append(weakref.ref(whole.untyped_storage()))  # type: ignore[arg-type]
        return whole

    weights = {f"w{n}": Weight((64,), torch.float32, gather) for n in range(9)}
    written: list[FileEntry] = []
    write_files(
        plan_files(entries_of(weights), 3 * 256),
        weights,
        lambda name, parts: written.append(hashed(name, parts)),
    )
    assert len(alive) == 9 and len(written) == 3


def test_shards_hold_at_most_so_much_and_the_index_names_the_shard_of_every_tensor() -> None:
    weights = weights_of()
    files = model_files(weights, SPEC, MANY)
    shards = [name for name in files if name.startswith("model-")]
    assert shards == [f"model-{n:05d}-of-{len(shards):05d}.safetensors" for n in range(1, len(shards) + 1)]
    index = json.loads(files[INDEX])
    assert index["metadata"] == {"total_size": sum(weight.nbytes for weight in weights.values())}
    held = {shard: safetensors.torch.load(files[shard]) for shard in shards}
    assert index["weight_map"] == {name: shard for shard, tensors in held.items() for name in tensors}
    assert same({name: tensor for tensors in held.values() for name, tensor in tensors.items()}, weights)
    for tensors in held.values():
        assert len(tensors) == 1 or sum(tensor.nbytes for tensor in tensors.values()) <= MANY


def test_a_model_of_exactly_the_size_is_one_file_and_a_byte_less_makes_two() -> None:
    size = sum(weight.nbytes for weight in weights_of().values())
    assert WEIGHTS in model_files(weights_of(), SPEC, size)
    assert INDEX in model_files(weights_of(), SPEC, size - 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shards_read_back_bit_for_bit_as_one_file_does(tmp_path: Path, dtype: torch.dtype) -> None:
    weights = weights_of(dtype)
    found = []
    for most in (MANY, 1 << 40):
        source = open_input(artifact(tmp_path / str(most), "model", model_files(weights, SPEC, most)))
        stored, spec = read_weights(source, tmp_path / "scratch")
        assert spec == SPEC and same(stored, weights)
        whole, _ = read_model(source, tmp_path / "scratch")
        single, _ = read_model(source, tmp_path / "scratch", dtype=torch.float32)
        assert same(whole.state_dict(), weights)
        found.append(single.state_dict())
    assert same(*found) and same(found[0], {name: weight.float() for name, weight in weights.items()})


@pytest.mark.parametrize("most", [MANY, 1 << 40])
def test_what_was_read_in_16_bits_is_written_again_as_it_was(tmp_path: Path, most: int) -> None:
    files = model_files(weights_of(torch.bfloat16), SPEC, most)
    stored, _ = read_weights(open_input(artifact(tmp_path, "model", files)), tmp_path / "scratch")
    again: dict[str, bytes] = {}
    live = stored.weights()
    write_files(
        plan_files(entries_of(live), most), live, lambda name, parts: again.update({name: b"".join(parts)})
    )
    assert again == {name: data for name, data in files.items() if name.endswith(".safetensors")}


def test_a_weight_that_was_read_and_dropped_is_no_longer_in_memory(tmp_path: Path) -> None:
    size, count = 4 << 20, 24

    def mapped() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssFile"))

    path = tmp_path / WEIGHTS
    path.write_bytes(
        written({f"w{n:02d}": torch.full((size // 2,), n, dtype=torch.bfloat16) for n in range(count)})[
            WEIGHTS
        ]
    )
    stored, most = StoredWeights(path), 0
    before = mapped()
    for number, name in enumerate(stored):
        assert float(stored[name].float().sum()) == number * size // 2
        most = max(most, mapped() - before)
    assert most < 3 * size


def test_changing_a_weight_that_was_read_changes_no_file(tmp_path: Path) -> None:
    path = tmp_path / WEIGHTS
    path.write_bytes(written({"a": torch.zeros(4)})[WEIGHTS])
    stored = StoredWeights(path)
    stored["a"].fill_(1)
    assert torch.equal(stored["a"], torch.zeros(4))


def test_a_type_that_files_do_not_have_is_refused_by_name() -> None:
    with pytest.raises(AtelierError, match=r"^w: torch\.complex64 has no safetensors type"):
        entry_of("w", (1,), torch.complex64)


def test_the_digest_of_weights_is_the_files_or_one_over_the_shards(tmp_path: Path) -> None:
    def digest(files: dict[str, bytes], folder: str) -> str:
        return weights_digest(open_input(artifact(tmp_path / folder, "model", files)).record.files, folder)

    one, shards = model_files(weights_of(), SPEC), model_files(weights_of(), SPEC, MANY)
    entry = next(
        e for e in open_input(artifact(tmp_path / "a", "model", one)).record.files if WEIGHTS in e.path
    )
    assert digest(one, "b") == entry.sha256
    found = {
        digest(shards, "c"),
        digest(dict(reversed(shards.items())), "d"),
        digest(shards | {"x": b""}, "e"),
    }
    assert len(found) == 1 and found != {entry.sha256}
    for name in [name for name in shards if name.startswith("model-")]:
        assert digest(shards | {name: shards[name] + b"\0"}, name) not in found
    with pytest.raises(DamageError, match=r"^f: a model without model\.safetensors and without shards"):
        digest({"config.json": b"{}"}, "f")
