"""Optimisers by kind: an optimiser of kind `adamw` is engine/optim/adamw.py."""

import importlib
from collections.abc import Iterable

import torch
from torch import Tensor

from engine.spec.base import Spec
from engine.spec.error import ConfigError


def build(spec: Spec, named_parameters: Iterable[tuple[str, Tensor]]) -> torch.optim.Optimizer:
    """The optimiser of `spec` over the parameters that require a gradient."""
    parameters = [(name, p) for name, p in named_parameters if p.requires_grad]
    if not parameters:
        raise ConfigError("trainable", "no weight is trainable", "trainable=full trains all of them")
    return importlib.import_module(f"engine.optim.{spec.kind}").build(spec, parameters)  # type: ignore[attr-defined]


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """The learning rate of the next step, for every group in its own proportion."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("scale", 1.0)
