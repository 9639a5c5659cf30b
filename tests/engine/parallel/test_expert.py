"""Sending tokens to experts on other ranks, with gangs of exchange_gang.py."""

from pathlib import Path
from typing import Any

import pytest
import torch

from atelier.engine.config.parallel import Parallel
from tests.engine.parallel.exchange_gang import D, X, tokens_of
from tests.engine.parallel.gangs import gang

BYTES = 8


def exchanged(folder: Path, layout: Parallel, *words: str, per_node: int) -> list[dict[str, Any]]:
    return gang("exchange_gang", folder, layout, *words, per_node=per_node)


def ranks_met(rank: int, *, size: int, per_node: int) -> int:
    """How often a token of `rank` has an expert on a rank of another node, counted once a rank."""
    _, chosen_NK, _ = tokens_of(rank)
    met = {
        (token, int(expert) * size // X)
        for token, row in enumerate(chosen_NK) for expert in row if expert >= 0
    }  # fmt: skip
    return sum(owner // per_node != rank // per_node for _, owner in met)


@pytest.mark.slow
def test_two_stages_have_the_bits_of_one_and_one_message_a_node(tmp_path: Path) -> None:
    """Bytes between nodes are those of each token once for every rank that has experts of it, with a weight
    for each expert there; they come back as one row.
    """
    layout = Parallel(shard=1, expert=4, threads=1)
    flat = exchanged(tmp_path / "flat", layout, "flat", per_node=2)
    staged = exchanged(tmp_path / "staged", layout, per_node=2)
    for one, two in zip(flat, staged, strict=True):
        assert (one["stages"], two["stages"]) == (False, True)
        for name, value in one["passed"].items():
            assert torch.equal(value, two["passed"][name]), name
        for name in ("y", "load", "x", "share"):
            torch.testing.assert_close(two["passed"][name], two["alone"][name], rtol=1e-10, atol=1e-10)
        # there and back, forward and backward
        assert (one["messages"], two["messages"]) == (4 * 2, 4 * 1)
    assert 0 < sum(one["bytes"] for one in flat) == sum(two["bytes"] for two in staged)


@pytest.mark.parametrize("per_node", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_token_is_sent_once_to_a_rank(tmp_path: Path, per_node: int) -> None:
    layout = Parallel(shard=1, expert=4, threads=1)
    found = exchanged(tmp_path / "gang", layout, per_node=per_node)
    once = [ranks_met(rank, size=4, per_node=per_node) for rank in range(4)]
    there = sum(once) * BYTES * (D + X // 4)
    back = sum(once) * BYTES * D
    assert sum(each["bytes"] for each in found) == 2 * (there + back)
    pairs = sum(int((tokens_of(rank)[1] >= 0).sum()) for rank in range(4))
    assert sum(once) < pairs


@pytest.mark.slow
def test_weights_gradients_are_those_of_all_ranks_tokens(tmp_path: Path) -> None:
    """With the inner width of every expert over a second axis."""
    layout = Parallel(shard=1, expert=2, tensor=2, threads=1)
    found = exchanged(tmp_path / "gang", layout, per_node=4)
    for rank in (0, 2):  # of one column
        for name in ("y", "load", "x", "share"):
            torch.testing.assert_close(
                found[rank]["passed"][name], found[rank]["alone"][name], rtol=1e-10, atol=1e-10
            )
    whole = sum(found[rank]["alone"]["experts.up"] for rank in (0, 2))
    mine = torch.cat(
        [torch.cat([found[row + column]["passed"]["experts.up"] for column in (0, 1)], 1) for row in (0, 2)]
    )
    torch.testing.assert_close(mine, whole, rtol=1e-10, atol=1e-10)
