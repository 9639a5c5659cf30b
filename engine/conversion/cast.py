"""Convert weights to another type (engine/config/conversion/cast.py)."""

from functools import partial

import torch
from torch import Tensor

from atelier.engine.config.conversion.cast import Cast
from atelier.engine.config.error import ConfigError
from atelier.engine.config.registry import ModelSpec
from atelier.engine.conversion.contract import Converted, Parent, copied


def convert(rule: Cast, parent: Parent, made: ModelSpec) -> Converted:
    """The model with weights of another type."""
    found, dtype = Converted(), getattr(torch, rule.dtype)
    widths = {weight.dtype.itemsize for weight in parent.weights.values()}
    for name, shape in made.shapes().items():
        found.add(name, shape, dtype, partial(_cast, parent, name, dtype), copied(name))
    found.about = {"dtype": rule.dtype, "is_exact": dtype.itemsize >= max(widths)}
    return found


def _cast(parent: Parent, name: str, dtype: torch.dtype) -> Tensor:
    cast = parent.weights[name].to(dtype)
    if not cast.isfinite().all():
        raise ConfigError("convert.dtype", f"{name} has values beyond {dtype}", "dtype=bfloat16")
    return cast
