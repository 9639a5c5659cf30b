"""Build optimisers by kind: kind `adamw` is engine/optim/adamw.py."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from atelier.engine.config.error import ConfigError
from atelier.engine.config.kind_files import kind_module
from atelier.engine.config.registry import OptimSpec


def leave_compiler_out() -> None:
    """Keep optimisers from importing torch's compiler (one second). Their methods import it on the first
    call, only to exclude themselves from compilation, and nothing here compiles them. No effect if torch
    differs from 2.11 and 2.13 (torch/_compile.py).
    """
    for method in vars(torch.optim.Optimizer).values():
        asked = getattr(method, "__wrapped__", None)
        if asked is not None and not hasattr(asked, "__dynamo_disable"):
            asked.__dynamo_disable = asked


Factors = Mapping[str, float]  # learning-rate factors by weight; default 1
AS_GIVEN: Factors = MappingProxyType({})


def build(
    spec: OptimSpec,
    named_parameters: Iterable[tuple[str, Tensor]],
    lr_factors: Factors = AS_GIVEN,
) -> torch.optim.Optimizer:
    """The optimiser of `spec` over the trainable parameters. `lr_factors`: the model's (muP). Raises
    ConfigError if nothing is trainable.
    """
    parameters = [(name, p) for name, p in named_parameters if p.requires_grad]
    if not parameters:
        raise ConfigError("trainable", "no weight is trainable", "use trainable=full")
    leave_compiler_out()
    return kind_module("optim", spec.kind, "build").build(spec, parameters, lr_factors)


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of the next step, scaled by each group's factor."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("scale", 1.0)
