"""A gang of two that computes a batch of bidirectional and causal rows, with memory and soft prompts, in
several layouts: `python -m tests.parity.rows`. Hidden states' cubes and their gradients are compared with
those of the whole model; the first difference ends it.
"""

import sys
from typing import Any

import torch
from torch import Tensor, nn

from atelier.engine.config.model.ernie import Ernie, Net
from atelier.engine.config.parallel import Axes
from atelier.engine.io.process import leave
from atelier.engine.model.contract import blocks_of
from atelier.engine.model.load import build, initialise
from atelier.engine.model.placement import settle_gradient, whole
from atelier.engine.parallel.context import gather_keys, own_tokens
from atelier.engine.parallel.gang import Gang, start_gang
from atelier.engine.parallel.grid import Grid
from atelier.engine.parallel.shard import shard
from atelier.engine.parallel.tensor import gathered, own_between, split_matrices
from tests.parity.cases import layout

SPEC = Ernie(
    num_layers=2, hidden=32, num_heads=4, num_kv_heads=2, vocab=64, prompts=4, init_std=0.2, dropout=0.1,
    nlu=Net(num_layers=1, hidden=16, num_heads=2), nlg=Net(num_layers=2, hidden=24, num_heads=2),
    classes={"topic": 3}, pairs={"topic": 4},
)  # fmt: skip
T = 16
LAYOUTS: dict[str, tuple[Axes, bool]] = {
    "shard": (Axes(shard=2), True),
    "context": (Axes(context=2), True),
    "tensor": (Axes(tensor=2), True),
    "tensor, whole sequences": (Axes(tensor=2), False),
}


def batch(kinds: list[int]) -> dict[str, Tensor]:
    """A row of two documents for each kind, 1 for bidirectional ones; the last two have memory."""
    generator = torch.Generator().manual_seed(3)
    tokens_BT = torch.randint(0, 64, (4, T), generator=generator)
    prompts_BT = torch.full_like(tokens_BT, -1)
    prompts_BT[:, 1:4] = torch.tensor([2, 0, 2])
    prompts_BT[3, 13] = 1
    memory_BT = torch.zeros_like(tokens_BT)
    memory_BT[2:, :7] = 1
    return {
        "tokens_BT": tokens_BT,
        "positions_BT": torch.arange(T).repeat(4, 1),
        "documents_BT": (torch.arange(T) >= 11).long().repeat(4, 1),
        "bidirectional_B": torch.tensor(kinds),
        "memory_BT": memory_BT,
        "prompts_BT": prompts_BT,
        "noise_BT": torch.randint(0, 2**60, (4, T), generator=generator),
    }


class Cubes(nn.Module):
    """The model and the sum of its hidden states' cubes: one root for sharding."""

    def __init__(self, model: nn.Module, grid: Grid | None, *, sequence_parallel: bool) -> None:
        super().__init__()
        self.model, self.grid, self.sequence_parallel = model, grid, sequence_parallel

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        if self.grid is None:
            return self.model(batch).hidden.pow(3).sum()
        how: dict[str, Any] = {"sequence_parallel": self.sequence_parallel}
        hidden_BTD = self.model(own_between(own_tokens(batch, self.grid), self.grid, **how)).hidden
        return gathered(hidden_BTD, self.grid, **how).pow(3).sum() / self.grid.axes.tensor


def compute(
    gang: Gang, axes: Axes | None, kinds: list[int], *, sequence_parallel: bool = True
) -> tuple[Tensor, dict[str, Any]]:
    """The sum over all ranks, and whole gradients by name."""
    model = build(SPEC).double()
    initialise(model, seed=1, name="rows")
    grid = None if axes is None else Grid(gang, axes)
    rows = batch(kinds)
    root = Cubes(model, grid, sequence_parallel=sequence_parallel)
    if grid is not None:
        split_matrices(model, grid, sequence_parallel=sequence_parallel)
        gather_keys(model, grid)
        shard(root, blocks_of(model), grid=grid, zero=3, precision="fp64")
        each = 4 // grid.axes.data
        mine = slice(grid.places["shard"] * each, (grid.places["shard"] + 1) * each)
        rows = {name: value[mine] for name, value in rows.items()}
    total = root(rows)
    total.backward()
    for weight in model.parameters():
        settle_gradient(weight)
    gradients = {name: weight.grad for name, weight in model.named_parameters()}
    assert all(gradient is not None for gradient in gradients.values()), "a weight has no gradient"
    total = total.detach() if grid is None else gang.sum(total.detach())
    return total, {name: whole(gradient) for name, gradient in gradients.items() if gradient is not None}


def compare(gang: Gang, kinds: list[int]) -> None:
    expected, gradients = compute(gang, None, kinds)
    for name, (axes, sequence_parallel) in LAYOUTS.items():
        total, found = compute(gang, axes, kinds, sequence_parallel=sequence_parallel)
        where = f"{name}, rows {kinds}"
        assert (total - expected).abs() < 1e-10 * expected.abs(), f"{where}: {total} is not {expected}"
        for weight, gradient in gradients.items():
            apart = (found[weight] - gradient).abs().max().item()
            assert apart < 1e-9, f"{where}: the gradient of {weight} is {apart} off"
        gang.barrier()


def main(arguments: list[str]) -> int:
    gang = start_gang(layout(shard=2))
    for kinds in ([1, 1, 0, 0], [0, 0, 0, 0], [1, 0, 1, 1]):
        compare(gang, kinds)
    return 0


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
