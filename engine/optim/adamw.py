"""AdamW (1711.05101): decoupled weight decay on matrices, none on norms and biases."""

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from atelier.engine.config.optim.adamw import AdamW
from atelier.engine.model.placement import by_mesh

ParameterGroup = dict[str, list[Tensor] | bool | float]  # as torch takes it


class PlainAdamW(torch.optim.AdamW):
    """torch.optim.AdamW without the import of torch's compiler that its first step would cause."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        step = torch.optim.AdamW.step
        return getattr(step, "__wrapped__", step)(self, closure)


def build(
    spec: AdamW, named_parameters: Iterable[tuple[str, Tensor]], lr_factors: Mapping[str, float]
) -> torch.optim.Optimizer:
    """AdamW with two groups, matrices with decay and the rest without, each in the given order, without
    frozen weights. Matrices whose learning rate has a factor form groups of their own.
    """
    chosen = {id(p): (name, p) for name, p in named_parameters if p.requires_grad}
    named = [(lr_factors.get(name, 1.0), p) for name, p in chosen.values()]
    groups: list[ParameterGroup] = [
        # the decay of a step, lr times weight_decay, stays unchanged (as in MuAdamW, muP's reference)
        {"params": alike, "scale": factor, "weight_decay": decay / factor}
        for factor in sorted({factor for factor, _ in named}, reverse=True)
        for decay, members in (
            (spec.weight_decay, [p for own, p in named if p.dim() >= 2 and own == factor]),
            (0.0, [p for own, p in named if p.dim() < 2 and own == factor]),
        )
        for alike in by_mesh(members)
    ]
    return PlainAdamW(
        groups,
        lr=spec.lr,
        betas=(spec.beta1, spec.beta2),
        eps=spec.eps,
        fused=True,
    )
