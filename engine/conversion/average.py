"""Average several models (engine/config/conversion/average.py), summed in float64."""

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from atelier.engine.config.conversion.average import AverageModels
from atelier.engine.config.conversions import FIRST
from atelier.engine.config.registry import ModelSpec
from atelier.engine.conversion.contract import Converted, Parent, WeightPiece
from atelier.engine.model.load import read_weights


def convert(rule: AverageModels, parent: Parent, made: ModelSpec) -> Converted:
    """The mean, in the first model's types. Raises ConfigError for a model of another shape."""
    models = [parent.weights]
    for role, which in rule.others.items():
        weights, spec = read_weights(parent.others[role], parent.scratch)
        rule.check_other(parent.spec, spec, which)
        models.append(weights)
    found, roles = Converted(), [FIRST, *rule.others]
    for name, shape in made.shapes().items():
        make = partial(_mean, models, rule.shares, name)
        pieces = [
            WeightPiece(name, share, "averaged", role) for role, share in zip(roles, rule.shares, strict=True)
        ]
        found.add(name, shape, parent.weights[name].dtype, make, *pieces)
    found.about = {"shares": list(rule.shares), "is_exact": False}
    return found


def _mean(models: Sequence[Mapping[str, Tensor]], shares: Sequence[float], name: str) -> Tensor:
    total = torch.zeros(models[0][name].shape, dtype=torch.float64)
    for weights, share in zip(models, shares, strict=True):
        total += weights[name].double() * share
    return total.to(models[0][name].dtype)
