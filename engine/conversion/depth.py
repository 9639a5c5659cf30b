"""Add blocks (engine/config/conversion/depth.py): each new block is a copy; with how=zero all but a block's
first copy add nothing to the residual stream.
"""

from functools import partial

import torch
from torch import Tensor

from atelier.engine.config.conversion.depth import Depth
from atelier.engine.config.error import ConfigError
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.registry import ModelSpec
from atelier.engine.conversion.contract import Converted, Parent, new

OUTPUTS = (
    "attention.out.weight",
    "attention.out.bias",
    "mlp.down.weight",
    "mlp.down.bias",
    "experts.down",
    "shared.down",
    "memory.values",
)


def convert(rule: Depth, parent: Parent, made: ModelSpec) -> Converted:
    """The deeper model."""
    if not isinstance(parent.spec, GPT):
        raise ConfigError("convert", "needs a model of kind gpt")
    sources = rule.sources(parent.spec.num_layers)
    found = Converted()
    for name, shape in made.shapes().items():
        if not name.startswith("blocks."):
            found.keep(name, parent)
            continue
        _, number, leaf = name.split(".", 2)
        source = sources[int(number)]
        old = f"blocks.{source}.{leaf}"
        is_first = sources.index(source) == int(number)
        if rule.how == "zero" and not is_first and leaf.endswith(OUTPUTS):
            found.add(name, shape, parent.weights[old].dtype, partial(_zeros, parent, old), new("zeros"))
        else:
            found.keep(name, parent, old)
    found.about = {"blocks": [list(pair) for pair in enumerate(sources)], "is_exact": rule.how == "zero"}
    return found


def _zeros(parent: Parent, name: str) -> Tensor:
    return torch.zeros_like(parent.weights[name])
