"""One rank of a gang that shards a model and computes two micro-batches; run by test_messages.py. What
it sent goes to a file: for each collective, how many calls.
"""

from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.parallel import Parallel
from atelier.engine.model.contract import blocks_of
from atelier.engine.model.gpt import Decoder
from atelier.engine.parallel.embedding import split_embedding
from atelier.engine.parallel.gang import Gang
from atelier.engine.parallel.grid import Grid
from atelier.engine.parallel.shard import between_micro_batches, shard
from tests.engine.parallel.gangs import rank

BLOCKS, MICRO, V, T = 3, 2, 32, 8


class Collectives(TorchDispatchMode):
    """Counts the collectives that run inside it, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self.counts[func._schema.name.removeprefix("c10d::")] += 1
        return func(*args, **(kwargs or {}))


def compute(gang: Gang, chosen: Parallel) -> dict[str, int]:
    grid = Grid(gang, chosen.axes)
    model = Decoder(GPT(num_layers=BLOCKS, hidden=16, num_heads=2, vocab=V, tied=False)).double()
    if chosen.embedding == "columns":
        split_embedding(model, grid, torch.float64, is_even=True)
    shard(model, blocks_of(model), grid=grid, zero=chosen.zero, precision="fp64")
    tokens_BT = torch.randint(V, (1, T), generator=torch.Generator().manual_seed(gang.rank))
    batch = {
        "tokens_BT": tokens_BT, "positions_BT": torch.arange(T)[None],
        "documents_BT": torch.zeros_like(tokens_BT),
    }  # fmt: skip
    with Collectives() as sent:
        for index in range(MICRO):
            if chosen.zero == 1:
                between_micro_batches(model, is_last=index == MICRO - 1)
            (model(batch).hidden.sum() + model.head.weight.sum()).backward()
    return dict(sent.counts)


def main(given: list[str]) -> int:
    return rank(given, compute)
