"""Fused communication, counted: a block's slices are one message, and so are its gradients."""

from pathlib import Path

import pytest

from atelier.engine.config.parallel import Parallel
from tests.engine.parallel.gangs import gang
from tests.engine.parallel.messages_gang import BLOCKS, MICRO

PIECES = BLOCKS + 1  # each block, and everything outside the blocks
GATHERS = {1: PIECES, 2: MICRO * PIECES, 3: MICRO * (PIECES + BLOCKS)}  # by ZeRO stage
REDUCTIONS = {1: PIECES, 2: MICRO * PIECES, 3: MICRO * PIECES}


@pytest.mark.parametrize(
    "zero", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)]
)
def test_a_block_is_one_message_and_its_gradients_another(tmp_path: Path, zero: int) -> None:
    layout = Parallel(shard=2, zero=zero, threads=1, device="cpu")
    (found, other) = gang("messages_gang", tmp_path / "gang", layout, per_node=2)
    assert found == other
    assert found == {"_allgather_base_": GATHERS[zero], "_reduce_scatter_base_": REDUCTIONS[zero]}


def test_columns_of_an_embedding_add_an_exchange_each_way_and_the_tokens(tmp_path: Path) -> None:
    """Of every micro-batch: which tokens each rank has; rows there, their gradients back."""
    layout = Parallel(shard=2, zero=1, threads=1, device="cpu", embedding="columns")
    found = gang("messages_gang", tmp_path / "gang", layout, per_node=2)[0]
    assert found == {
        "_allgather_base_": GATHERS[1] + MICRO,
        "_reduce_scatter_base_": REDUCTIONS[1],
        "alltoall_base_": 2 * MICRO,
    }
