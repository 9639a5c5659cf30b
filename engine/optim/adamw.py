"""AdamW (1711.05101): decoupled weight decay on matrices, none on norms and biases."""

from collections.abc import Iterable

import torch
from torch import Tensor

from engine.spec.optim.adamw import AdamW


def build(spec: AdamW, named_parameters: Iterable[tuple[str, Tensor]]) -> torch.optim.Optimizer:
    """Two groups, matrices with decay and the rest without, each in the order given; frozen weights are left
    out.
    """
    chosen = list({id(p): p for _, p in named_parameters if p.requires_grad}.values())
    groups = [
        {"params": [p for p in chosen if p.dim() >= 2], "weight_decay": spec.weight_decay},
        {"params": [p for p in chosen if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=spec.lr,
        betas=(spec.beta1, spec.beta2),
        eps=spec.eps,
        fused=True,
    )
