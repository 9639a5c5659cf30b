"""Damaged shards and indexes, drawn from a seed: one clear line of error, and nothing is loaded."""

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch

from atelier.engine.config.error import DamageError, DataError
from atelier.engine.io.artifact import ArtifactInput, open_input
from atelier.engine.io.weight_files import INDEX
from atelier.engine.model.load import read_model
from tests.engine.model.test_weights import MANY, SPEC, weights_of
from tests.engine.trainings import artifact, model_files

SEED = int(os.environ.get("ATELIER_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
NUM = 120

# what can be wrong, each with what the message says of it; bytes that nobody vouches for are damage, what was
# written like this is data
Files = dict[str, bytes]
Fault = Callable[[Files, random.Random], str]


def shard_of(files: Files, rng: random.Random) -> str:
    return rng.choice([name for name in files if name.startswith("model-")])


def mapping(files: Files, change: Callable[[dict[str, Any]], None]) -> None:
    index = json.loads(files[INDEX])
    change(index["weight_map"])
    files[INDEX] = json.dumps(index).encode()


def no_such_shard(files: Files, rng: random.Random) -> str:
    name = shard_of(files, rng)
    del files[name]
    return f"{name}, a file that the model does not have"


def another_shard(files: Files, rng: random.Random) -> str:
    """The index gives one tensor to a shard that does not hold it."""
    owners = json.loads(files[INDEX])["weight_map"]
    name = rng.choice(sorted(owners))
    other = rng.choice(sorted(set(owners.values()) - {owners[name]}))
    mapping(files, lambda found: found.update({name: other}))
    return name


def another_model(files: Files, rng: random.Random) -> str:
    """A shard with a tensor of another shape."""
    shard = shard_of(files, rng)
    tensors = safetensors.torch.load(files[shard])
    name = rng.choice(sorted(tensors))
    tensors[name] = torch.zeros(3, 5, 7)
    files[shard] = safetensors.torch.save(tensors)
    return f"{name} is (3, 5, 7), not "


def another_name(files: Files, rng: random.Random) -> str:
    """A shard and its index with a tensor that the model does not have."""
    shard = shard_of(files, rng)
    tensors = safetensors.torch.load(files[shard])
    name = rng.choice(sorted(tensors))
    tensors["more.weight"] = tensors.pop(name)
    files[shard] = safetensors.torch.save(tensors)
    mapping(files, lambda found: found.update({"more.weight": found.pop(name)}))
    return f"no {name}; unknown more.weight"


def twice(files: Files, rng: random.Random) -> str:
    """Two shards with the same tensor."""
    owners = json.loads(files[INDEX])["weight_map"]
    name = rng.choice(sorted(owners))
    tensor = safetensors.torch.load(files[owners[name]])[name]
    shard = rng.choice(sorted(set(owners.values()) - {owners[name]}))
    files[shard] = safetensors.torch.save(safetensors.torch.load(files[shard]) | {name: tensor})
    return f"{shard} holds {name}, which is not in the index"


def leaving(files: Files, rng: random.Random) -> str:
    path = rng.choice(
        ["../model.safetensors", "/etc/passwd", "a/../../b", "..", "", "a\\b", "sub/model.safetensors"]
    )
    mapping(files, lambda found: found.update({rng.choice(sorted(found)): path}))
    return f"{path}, which is outside the model's folder"


def no_name(files: Files, rng: random.Random) -> str:
    value = rng.choice([None, 3, ["model.safetensors"], {}, True])
    mapping(files, lambda found: found.update({rng.choice(sorted(found)): value}))
    return f"{value!r}, not the name of a file"


def no_map(files: Files, rng: random.Random) -> str:
    value = rng.choice([None, [], "x", 7, {}])
    files[INDEX] = json.dumps({"metadata": {}, "weight_map": value} if value is not None else {}).encode()
    return f"weight_map is {value if isinstance(value, str) else repr(value)}, not an object"


def no_json(files: Files, rng: random.Random) -> str:
    files[INDEX] = rng.choice([b"{", b"", b"\xff\xfe", b"[1]", b'{"a": NaN}', b"[" * 9999, files[INDEX][:-9]])
    return INDEX


def no_weights(files: Files, rng: random.Random) -> str:
    name = shard_of(files, rng)
    files[name] = rng.choice([b"", b"\0" * 64, files[name][: rng.randrange(len(files[name]))], b"\xff" * 9])
    return "not a weights file"


WRITTEN: list[Fault] = [
    no_such_shard, another_shard, another_model, another_name, twice,
    leaving, no_name, no_map, no_json, no_weights,
]  # fmt: skip


def read(source: ArtifactInput, scratch: Path) -> str:
    """The error of reading a model; it must be one line of the project's own kind."""
    with pytest.raises((DataError, DamageError)) as caught:
        read_model(source, scratch)
    line = str(caught.value)
    assert "\n" not in line and source.url in line, line
    return line


def test_a_model_in_shards_that_was_written_wrong_is_refused_in_one_line(tmp_path: Path) -> None:
    good = model_files(weights_of(), SPEC, MANY)
    for number in range(NUM):
        rng = random.Random(f"{SEED}-{number}")
        fault, files = WRITTEN[number % len(WRITTEN)], dict(good)
        expected = fault(files, rng)
        line = read(open_input(artifact(tmp_path / str(number), "model", files)), tmp_path / "scratch")
        assert expected in line, (SEED, number, fault.__name__, expected, line)


def test_a_shard_whose_bytes_changed_is_found_before_it_is_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = model_files(weights_of(), SPEC, MANY)
    source = open_input(artifact(tmp_path, "model", files))
    payload, rng = tmp_path / "payload", random.Random(SEED)
    monkeypatch.setattr(safetensors, "safe_open", lambda *_, **__: pytest.fail("it was parsed"))
    for number in range(NUM):
        name = rng.choice([name for name in files if name.startswith("model")])
        data, place = bytearray(files[name]), payload / name
        how = rng.choice(["flipped", "truncated", "longer", "gone"])
        if how == "flipped":
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        elif how == "truncated":
            del data[rng.randrange(len(data)) :]
        elif how == "longer":
            data += b"\0" * rng.randrange(1, 9)
        place.write_bytes(data)
        if how == "gone":
            place.unlink()
        line = read(source, tmp_path / "scratch")
        assert str(place) in line, (SEED, number, how, line)
        place.write_bytes(files[name])
