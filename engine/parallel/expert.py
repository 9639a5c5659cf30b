"""Expert parallelism: experts split over the expert axis; an all-to-all sends each token to the ranks that
hold its experts, another sends the results back (GShard, 2006.16668).

With tensor > 1 every expert's inner width is split too, as any MLP's.
"""

import functools

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import Placement, Shard, distribute_tensor

from atelier.engine.model.moe import ExpertWeights, SharedExperts, mlp
from atelier.engine.model.placement import local
from atelier.engine.parallel.collective import all_parts, enter_split, exchange, leave_split
from atelier.engine.parallel.grid import Grid

INNER_DIM = {"gate": -2, "up": -2, "down": -1}  # of [X, F, D] and [X, D, F], of [F, D] and [D, F]


def split_experts(model: nn.Module, grid: Grid) -> None:
    """Split the experts of every mixture of the plain model in place, and route tokens to their ranks."""
    if grid.axes.expert * grid.axes.tensor == 1:
        return
    for experts in mixtures(model):
        _place(experts, grid, [Shard(0)])
        experts.forward = functools.partial(_travel, experts, grid)
    for shared in model.modules():
        if isinstance(shared, SharedExperts) and grid.axes.tensor > 1:
            _place(shared, grid, [])
            shared.forward = functools.partial(_split, shared, grid)


def _place(module: nn.Module, grid: Grid, outer: list[Placement]) -> None:
    """Split the inner width over the tensor axis, and with an `outer` placement experts over theirs."""
    mesh = grid.mesh_of("expert", "tensor") if outer else grid.mesh_of("tensor")
    for name, weight in list(module.named_parameters(recurse=False)):
        places = [*outer, Shard(weight.dim() + INNER_DIM[name])]
        placed = distribute_tensor(weight.detach(), mesh, places, src_data_rank=None)
        setattr(module, name, nn.Parameter(placed, requires_grad=weight.requires_grad))


def mixtures(model: nn.Module) -> list[ExpertWeights]:
    """The experts of every mixture in the model, in order of its modules."""
    return [module for module in model.modules() if isinstance(module, ExpertWeights)]


def _split(shared: SharedExperts, grid: Grid, x_ND: Tensor) -> Tensor:
    """`SharedExperts.forward` with the inner width over the tensor axis."""
    columns = grid.group("tensor")
    assert columns is not None  # only split where there are several ranks
    weights = tuple(local(weight) for weight in shared.parameters(recurse=False))
    return leave_split(mlp(enter_split(x_ND, columns), weights), columns)


def _travel(experts: ExpertWeights, grid: Grid, x_PD: Tensor, counts_X: list[int]) -> Tensor:
    """`ExpertWeights.forward` over the ranks: each computes the tokens received for its own experts, sorted
    by expert, then by source rank.
    """
    columns, owners = grid.group("tensor"), grid.group("expert")
    if columns is not None:
        x_PD = enter_split(x_PD, columns)
    if owners is None:
        y_PD = experts.compute(x_PD, counts_X)
    else:
        size = grid.axes.expert
        counts_RX = _all_counts(counts_X, x_PD.device, owners)
        mine = len(counts_X) // size
        sent = [sum(counts_X[rank * mine : (rank + 1) * mine]) for rank in range(size)]
        begin = grid.places["expert"] * mine
        here_RX = [counts[begin : begin + mine] for counts in counts_RX]
        received = [sum(counts) for counts in here_RX]
        arrived_QD = exchange(x_PD, sent, received, owners)
        order, back = _by_expert(here_RX, x_PD.device)
        totals = [sum(counts[expert] for counts in here_RX) for expert in range(mine)]
        y_PD = experts.compute(arrived_QD[order], totals)[back]
        y_PD = exchange(y_PD, received, sent, owners)
    return y_PD if columns is None else leave_split(y_PD, columns)


def _all_counts(counts_X: list[int], device: torch.device, group: dist.ProcessGroup) -> list[list[int]]:
    """How many tokens each rank has for each expert."""
    return all_parts(torch.tensor(counts_X, device=device), group).tolist()


def _by_expert(here_RX: list[list[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """The permutation that sorts received tokens (by source, then expert) by expert, then source; and its
    inverse.
    """
    counts_RX = torch.tensor(here_RX, device=device)
    experts_RX = torch.arange(counts_RX.shape[1], device=device).expand_as(counts_RX)
    order = experts_RX.flatten().repeat_interleave(counts_RX.flatten()).argsort(stable=True)
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order), device=device)
    return order, back
