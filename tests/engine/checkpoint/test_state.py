"""Python values of a checkpoint are restored equal and with the same type, or are refused."""

import json
import math
import random
import struct
from typing import Any

import pytest
import torch

from atelier.engine.checkpoint.state import decode, encode, merged, nested, owner, tensors_of, values_of
from atelier.engine.config.error import ConfigError


def through_json(value: Any) -> Any:
    return decode(json.loads(json.dumps(encode(value, "x"), allow_nan=False)))


def test_ten_thousand_random_floats_come_back_bit_exact() -> None:
    rng = random.Random(0)
    for _ in range(10_000):
        value = struct.unpack("<d", rng.randbytes(8))[0]
        if not math.isnan(value):
            assert struct.pack("<d", through_json(value)) == struct.pack("<d", value)
    assert math.copysign(1, through_json(-0.0)) == -1


@pytest.mark.parametrize(
    "value",
    [
        (0.9, 0.95),
        [1, (2, [3.0, ()]), None],
        {"a": {1: (True, False)}, "!tuple": [1]},
        float("inf"),
        -float("inf"),
        2**200,
        "Zürich \n\x00 学",
        [],
        {},
    ],
)
def test_a_value_comes_back_equal_and_of_the_same_types(value: Any) -> None:
    found = through_json(value)
    assert repr(found) == repr(value) and type(found) is type(value)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (float("nan"), "NaN"),
        ((1, float("nan")), "NaN"),
        ({1, 2}, "builtins.set"),
        (torch.float32, "torch.dtype"),
        (torch.tensor(1.0).numpy()[()], "numpy.float32"),
        ([torch.ones(1)], "inside a list"),
        ("\ud800", "Unicode"),
        (b"bytes", "builtins.bytes"),
    ],
)
def test_what_would_not_come_back_the_same_is_refused_with_its_name(value: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=rf"^role\.x: .*{problem}"):
        values_of({"role": {"x": value}}, rank=0)


def test_a_nested_state_is_taken_apart_and_put_together_with_int_keys_and_empty_parts() -> None:
    state = {"optim": {0: {"step": torch.ones(()), "lr": 0.1}, 1: {}}, "role": {"a": {"b": [1]}}}
    assert list(tensors_of(state)) == ["optim.0.step"]
    assert nested(values_of(state, rank=0)) == {"optim": {0: {"lr": 0.1}, 1: {}}, "role": {"a": {"b": [1]}}}


def test_two_entries_with_one_dotted_name_are_refused() -> None:
    for one, two in ((1, 2), (torch.ones(1), torch.ones(1)), (1, torch.ones(1))):
        with pytest.raises(ConfigError, match=r"^a\.b: "):
            values_of({"a.b": one, "a": {"b": two}}, rank=0)


def test_only_the_rank_in_its_name_saves_a_per_rank_value() -> None:
    assert owner("role.rank.3.seed") == 3 and owner("rank.12") == 12
    assert owner("frank.3.x") is None and owner("rank.x") is None
    with pytest.raises(ConfigError, match=r"rank\.1\.seed: belongs to another rank"):
        values_of({"rank.1.seed": 5}, rank=0)


def test_a_value_that_differs_between_ranks_is_refused_with_both_values() -> None:
    shared = values_of({"x": 1, "y": (1, 2)}, 0)
    assert merged([shared, [*shared, (("rank.1.z",), 5)]]) == [*shared, (("rank.1.z",), 5)]
    with pytest.raises(ConfigError, match=r"^x: differs between ranks: 1 on rank 0, 1.0 on rank 1"):
        merged([values_of({"x": 1}, 0), values_of({"x": 1.0}, 1)])
