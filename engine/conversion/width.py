"""Multiply the width by a whole number (engine/config/conversion/width.py).

The hidden state h becomes [h, .., h]: matrices that write it get repeated rows, matrices that read it split
their columns among copies, W h = sum_c (s_c W) h with sum_c s_c = 1. Likewise for heads and the MLP's inner
units. Norms see the same mean and variance. The final norm's weights are divided by c if the head is tied
(its rows are repeated), and multiplied by c with a base width, which divides logits by c.

D hidden, c copies
"""

from functools import partial

import torch
from torch import Tensor

from atelier.engine.config.conversion.width import Width
from atelier.engine.config.error import ConfigError
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.seed import seed_of
from atelier.engine.conversion.contract import Converted, Parent, WeightPiece


def convert(rule: Width, parent: Parent, made: ModelSpec) -> Converted:
    """The wider model."""
    spec = parent.spec
    if not isinstance(spec, GPT):
        raise ConfigError("convert", "needs a model of kind gpt")
    found, factor = Converted(), rule.factor(spec)
    scale = (factor if spec.tied else 1) / (factor if spec.base_width else 1)
    for name, shape in made.shapes().items():
        weight = parent.weights[name]
        make = partial(_widened, rule, parent, name, factor, scale=scale)
        found.add(name, shape, weight.dtype, make, WeightPiece(name, 1.0, f"repeated {factor} times"))
    is_wide = all(weight.dtype.itemsize >= 4 for weight in parent.weights.values())
    found.about = {"factor": factor, "is_exact": is_wide}  # shares of narrower types are rounded
    return found


def _widened(rule: Width, parent: Parent, name: str, factor: int, *, scale: float) -> Tensor:
    weight, leaf = parent.weights[name], name.rsplit(".", 2)[-2]
    if leaf in ("embed", "positions", "soft"):  # [V, D]
        return weight.repeat(1, factor)
    if leaf in ("query_norm", "key_norm"):  # heads keep their width
        return weight
    if name.startswith("norm."):  # the head reads all copies
        return weight.repeat(factor) / scale
    if weight.dim() == 1:
        return weight.repeat(factor)
    rows = 1 if name == "head.weight" else factor
    return _matrix(rule, weight, name, factor, rows)


def _matrix(rule: Width, weight: Tensor, name: str, factor: int, rows: int) -> Tensor:
    """[rows * out, factor * in]: each copy of the outputs splits the inputs among copies in its own way."""
    generator = torch.Generator().manual_seed(seed_of(rule.seed, rule.kind, name))
    blocks = []
    for _ in range(rows):
        drawn = torch.rand(factor, *weight.shape, generator=generator, dtype=torch.float64)
        share = 1 + rule.spread * (drawn - drawn.mean(0)) * 2
        share = share / share.sum(0)
        blocks.append(torch.cat([(weight * each).to(weight.dtype) for each in share], dim=1))
    return torch.cat(blocks, dim=0)
