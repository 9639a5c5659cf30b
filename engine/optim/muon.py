"""Muon: a matrix is updated by its momentum, orthogonalised by a Newton-Schulz iteration (2502.16982). Every
matrix of every expert is orthogonalised alone; routers, and keys and values of product-key memories, use
AdamW.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.adamw import adamw

from atelier.engine.config.optim.muon import Muon
from atelier.engine.model.placement import (
    back_from,
    by_mesh,
    has_half,
    is_placed,
    like,
    local,
    together,
    whole,
)
from atelier.engine.optim.adamw import ParameterGroup

if TYPE_CHECKING:  # takes a second to load
    from torch.distributed.tensor import DTensor

INSIDE = ("blocks.", ".enter.", ".leave.")  # in names of matrices between hidden states

# Quintic coefficients of K. Jordan's Muon: steep at zero, singular values end between about 0.7 and 1.2.
A, B, C = 3.4445, -4.7750, 2.0315


def build(
    spec: Muon, named_parameters: Iterable[tuple[str, Tensor]], lr_factors: Mapping[str, float]
) -> torch.optim.Optimizer:
    """Muon for matrices in blocks (experts' included) and around task nets; AdamW with decay for other
    matrices, without for vectors. `lr_factors` apply to AdamW only: an orthogonalised update has the same
    size at any width.
    """
    chosen = list({id(p): (name, p) for name, p in named_parameters if p.requires_grad}.values())
    inside = [p for name, p in chosen if any(word in name for word in INSIDE) and is_moved(name, p)]
    taken = {id(p) for p in inside}
    outside = [(lr_factors.get(name, 1.0), p) for name, p in chosen if p.dim() >= 2 and id(p) not in taken]
    vectors = [p for _, p in chosen if p.dim() < 2]
    scale = spec.matrix_lr / spec.lr
    groups: list[ParameterGroup] = [
        {"params": inside, "is_muon": True, "scale": scale, "weight_decay": spec.weight_decay},
        *(
            {"params": [p for own, p in outside if own == each], "is_muon": False}
            | {"scale": each, "weight_decay": spec.weight_decay / each}
            for each in sorted({factor for factor, _ in outside}, reverse=True)
        ),
        {"params": vectors, "is_muon": False, "scale": 1.0, "weight_decay": 0.0},
    ]
    return MuonWithAdamW([group for group in groups if group["params"]], spec)


def is_moved(name: str, weight: Tensor) -> bool:
    """Whether a weight in blocks is a matrix between hidden states, or experts' matrices [X, M, N]. A
    memory's value rows are looked up like an embedding and do not count.
    """
    return weight.dim() in (2, 3) and not name.endswith(("router.weight", "memory.values"))


def orthogonal_each(
    weights: Sequence[Tensor], update: Callable[[Tensor], Tensor], iterations: int
) -> Iterator[Tensor]:
    """The orthogonalised updates of matrices [M, N] and of experts' [X, M, N], in their weights' placements.
    `update` gives a weight's update; one is in memory at a time. Of matrices that several ranks hold, each
    rank orthogonalises some whole ones, which it keeps, and gives them to the others: equal bits on all ranks
    and on one process.
    """
    owners, turned = _owners(weights), dict[int, Tensor]()
    for number, owner in owners.items():
        matrix = whole(update(weights[number]))
        if owner == _place_in(weights[number]):
            turned[number] = matrix
    for number in turned:  # all are gathered: now the ranks compute at once
        turned[number] = orthogonal(turned[number], iterations).contiguous()
    for number, weight in enumerate(weights):
        if number in owners:
            yield like(_given(turned.pop(number, None), owners[number], weight), weight)
        elif weight.dim() == 2:
            yield like(orthogonal(whole(update(weight)), iterations), weight)
        else:
            mine = together(update(weight))  # this rank's experts, with whole matrices
            experts = [orthogonal(matrix, iterations) for matrix in local(mine).unbind(0)]
            yield back_from(torch.stack(experts) if experts else local(mine), mine, weight)


def _owners(weights: Sequence[Tensor]) -> dict[int, int]:
    """The place in its mesh of the rank that orthogonalises a matrix, by number, for equal work; only of
    matrices that several ranks hold.
    """
    costs: dict[int, float] = {}
    for number, weight in enumerate(weights):
        if is_placed(weight) and weight.dim() == 2 and weight.device_mesh.size() > 1:
            costs[number] = weight.numel() * min(weight.shape)
    loads: dict[object, list[float]] = {}
    found: dict[int, int] = {}
    for number in sorted(costs, key=lambda number: (-costs[number], number)):
        mesh = cast("DTensor", weights[number]).device_mesh
        load = loads.setdefault(mesh, [0.0] * mesh.size())
        found[number] = load.index(min(load))
        load[found[number]] += costs[number]
    return dict(sorted(found.items()))


def _place_in(weight: Tensor) -> int:
    """This rank's place in the mesh of a matrix."""
    mesh, place = cast("DTensor", weight).device_mesh, 0
    for dim in range(mesh.ndim):
        place = place * mesh.size(dim) + mesh.get_local_rank(dim)
    return place


def _given(matrix: Tensor | None, owner: int, weight: Tensor) -> Tensor:
    """A matrix that only its owner has, on all ranks of the mesh: along one axis after another."""
    mesh = cast("DTensor", weight).device_mesh
    if matrix is None:
        matrix = local(weight).new_empty(weight.shape)
    for dim in reversed(range(mesh.ndim)):
        owner, place = divmod(owner, mesh.size(dim))
        if mesh.size(dim) > 1:
            dist.broadcast(matrix, group=mesh.get_group(dim), group_src=place)
    return matrix


def orthogonal(matrix_MN: Tensor, iterations: int) -> Tensor:
    """Approximately U V^T of the matrix's singular value decomposition; in bfloat16 for float32 input if the
    device has it, otherwise in the input's precision.
    """
    is_half = matrix_MN.dtype == torch.float32 and has_half(matrix_MN.device)
    work = matrix_MN.bfloat16() if is_half else matrix_MN
    is_tall = work.shape[0] > work.shape[1]
    x = (work.T if is_tall else work).contiguous()  # one memory order gives equal bits in every layout
    x = x / (x.norm() + 1e-7)
    for _ in range(iterations):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=B, alpha=C), x, beta=A)
    return (x.T if is_tall else x).to(matrix_MN.dtype)


class MuonWithAdamW(torch.optim.Optimizer):
    """Muon for groups with `is_muon`, AdamW for others, in one optimiser, so that learning rates, states and
    checkpoints are together.
    """

    def __init__(self, groups: list[ParameterGroup], spec: Muon) -> None:
        self.spec = spec
        super().__init__(groups, {"lr": spec.lr})

    @torch.no_grad()  # torch declares two signatures, with and without closure
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            moved = [p for p in group["params"] if p.grad is not None]
            if group["is_muon"]:
                self._step_matrices(moved, group["lr"], group["weight_decay"])
            else:
                for alike in by_mesh(moved):
                    self._step_adamw(alike, group["lr"], group["weight_decay"])

    def _step_matrices(self, moved: list[Tensor], lr: float, decay: float) -> None:
        def update(parameter: Tensor) -> Tensor:
            assert parameter.grad is not None  # only such parameters are moved
            return parameter.grad.lerp(self.state[parameter]["momentum"], self.spec.momentum)

        for parameter in moved:
            state, grad = self.state[parameter], parameter.grad
            assert grad is not None
            if not state:
                state["momentum"] = torch.zeros_like(parameter)
            state["momentum"].lerp_(grad, 1 - self.spec.momentum)
        turned = orthogonal_each(moved, update, self.spec.iterations)
        for parameter, each in zip(moved, turned, strict=True):
            rows, columns = parameter.shape[-2:]
            parameter.mul_(1 - lr * decay)
            parameter.add_(each, alpha=-lr * max(1.0, rows / columns) ** 0.5)

    def _step_adamw(self, moved: list[Tensor], lr: float, decay: float) -> None:
        for parameter in moved:
            state = self.state[parameter]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
        states = [self.state[parameter] for parameter in moved]
        adamw(
            moved,
            [p.grad for p in moved if p.grad is not None],
            [s["exp_avg"] for s in states],
            [s["exp_avg_sq"] for s in states],
            [],
            [s["step"] for s in states],
            fused=True,
            amsgrad=False,
            beta1=self.spec.beta1,
            beta2=self.spec.beta2,
            lr=lr,
            weight_decay=decay,
            eps=self.spec.eps,
            maximize=False,
        )
