"""AdamW (1711.05101): decoupled weight decay on matrices, none on norms and biases."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from atelier.engine.config.optim.adamw import AdamW
from atelier.engine.model.placement import by_mesh


class PlainAdamW(torch.optim.AdamW):
    """torch.optim.AdamW without the import of torch's compiler that its first step would cause."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        step = torch.optim.AdamW.step
        return getattr(step, "__wrapped__", step)(self, closure)


def build(spec: AdamW, named_parameters: Iterable[tuple[str, Tensor]]) -> torch.optim.Optimizer:
    """AdamW with two groups, matrices with decay and the rest without, each in the order given; frozen
    weights are left out.
    """
    chosen = list({id(p): p for _, p in named_parameters if p.requires_grad}.values())
    groups = [
        {"params": alike, "weight_decay": decay}
        for decay, members in (
            (spec.weight_decay, [p for p in chosen if p.dim() >= 2]),
            (0.0, [p for p in chosen if p.dim() < 2]),
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
