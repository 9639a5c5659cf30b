"""Optimisers by kind: an optimiser of kind `adamw` is engine/optim/adamw.py."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from atelier.engine.config.error import ConfigError
from atelier.engine.config.kind_files import kind_module
from atelier.engine.config.registry import OptimSpec


def leave_compiler_out() -> None:
    """Keep optimisers from importing torch's compiler, which takes a second: their methods import it on the
    first call only to be excluded from compilation, and nothing compiles them here. Has no effect where torch
    does this differently from 2.11 and 2.13 (torch/_compile.py).
    """
    for method in vars(torch.optim.Optimizer).values():
        asked = getattr(method, "__wrapped__", None)
        if asked is not None and not hasattr(asked, "__dynamo_disable"):
            asked.__dynamo_disable = asked


Factors = Mapping[str, float]  # of the learning rate, by weight; 1 where a weight has none
AS_GIVEN: Factors = MappingProxyType({})


def build(
    spec: OptimSpec,
    named_parameters: Iterable[tuple[str, Tensor]],
    lr_factors: Factors = AS_GIVEN,
) -> torch.optim.Optimizer:
    """The optimiser of `spec` over the trainable parameters. `lr_factors`: the model's (muP). Raises
    ConfigError when there are none to train.
    """
    parameters = [(name, p) for name, p in named_parameters if p.requires_grad]
    if not parameters:
        raise ConfigError("trainable", "no weight is trainable", "trainable=full trains all of them")
    leave_compiler_out()
    return kind_module("optim", spec.kind, "build").build(spec, parameters, lr_factors)


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of the next step, scaled for every group by its own factor."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("scale", 1.0)
