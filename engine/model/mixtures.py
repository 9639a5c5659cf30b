"""Sums over tokens in models with mixtures of experts: losses, loads for routers, and metrics.

X experts, L mixtures
"""

from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor

from atelier.engine.config.experts import MixedBlocks
from atelier.engine.model.contract import Model, Sum
from atelier.engine.model.moe import Mixed

SharedType = TypeVar("SharedType")


class MixtureModel(Model[SharedType]):
    """A model in which some blocks' `mlp` is a mixture; `place`: its index among the model's mixtures."""

    spec: MixedBlocks

    def sums(self) -> dict[str, Sum]:
        """The sums of mixtures: losses; without gradient, per mixture: loads, lost choices, entropy."""
        number, X = len(self.spec.mixtures), self.spec.num_experts
        if not number:
            return {}
        optimised = {name: Sum(weight=weight) for name, weight in self.spec.experts.router.sums.items()}
        return optimised | {
            "load_LX": Sum((number, X)),
            "lost_L": Sum((number,)),
            "entropy_L": Sum((number,)),
        }

    def after_step(self, sums: Mapping[str, Tensor]) -> None:
        """Give routers that learn from loads the loads of the step."""
        for block in self.blocks:
            place = getattr(block, "place", None)
            learn = getattr(getattr(block.mlp, "router", None), "learn_loads", None)
            if learn is not None and isinstance(place, int):
                learn(sums["load_LX"][place])

    def measured(self, sums: Mapping[str, Tensor], tokens: int) -> dict[str, float]:
        """Per mixture: load of the fullest expert as a multiple of an equal share, experts without tokens,
        lost choices (or tokens without expert) per token, entropy of the router in nats.
        """
        found: dict[str, float] = {}
        for place, number in enumerate(self.spec.mixtures):
            load_X, lost = sums["load_LX"][place], float(sums["lost_L"][place])
            met = float(load_X.sum())
            found |= {
                f"experts/load/{number}": float(load_X.max()) * len(load_X) / max(met, 1.0),
                f"experts/dead/{number}": float((load_X == 0).sum()),
                f"experts/entropy/{number}": float(sums["entropy_L"][place]) / max(1, tokens),
            }
            if lost:
                found[f"experts/lost/{number}"] = lost / max(1, tokens)
        return found


def mixture_sums(found: Mixed, place: int, number: int) -> dict[str, Tensor]:
    """The sums of one mixture, at its place among the `number` mixtures of the model."""
    sums = {"balance": found.balance, "router_z": found.router_z}
    for name, value in (("load_LX", found.load_X), ("lost_L", found.lost), ("entropy_L", found.entropy)):
        sums[name] = at_place(value, place, number)
    return sums


def at_place(value: Tensor, place: int, number: int) -> Tensor:
    """[number, ...] with the value at its place and zeros elsewhere."""
    before = value.new_zeros(place, *value.shape)
    after = value.new_zeros(number - place - 1, *value.shape)
    return torch.cat([before, value[None], after])
