"""Add product-key memories with value rows of zero (engine/config/conversion/product_keys.py). Values have a
gradient at once, queries and keys once the values have changed.
"""

from functools import partial

import torch
from torch import Tensor

from atelier.engine.config.conversion.product_keys import AddProductKeys
from atelier.engine.config.registry import ModelSpec
from atelier.engine.conversion.contract import Converted, Parent, new
from atelier.engine.model.contract import Model
from atelier.engine.model.load import blank, build, first_values
from atelier.engine.model.product_keys import VALUES


def convert(rule: AddProductKeys, parent: Parent, made: ModelSpec) -> Converted:
    """The model with memories."""
    with blank():
        network = build(made)
    found, dtype = Converted(), next(iter(parent.weights.values())).dtype
    for name, shape in made.shapes().items():
        if name in parent.weights:
            found.keep(name, parent)
        else:
            make = partial(_first, rule, network, name, torch.Size(shape), dtype)
            found.add(name, shape, dtype, make, new("memory"))
    found.about = {"value_rows": rule.keys**2, "is_exact": True}
    return found


def _first(rule: AddProductKeys, network: Model, name: str, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    if name.endswith(f".{VALUES}"):
        return torch.zeros(shape, dtype=dtype)
    return first_values(network, name, shape, rule.seed, rule.kind).to(dtype)
