"""What a role of a training at several sites has of its outer steps (engine/loop/outer.py)."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from atelier.engine.checkpoint.state import Tree
from atelier.engine.config.error import ConfigError
from atelier.engine.config.link import Link
from atelier.engine.loop.weights import RoleWeights


@dataclass
class OuterState:
    """What a role has of outer steps on this rank: its weights after the last one, the momentum, and the
    digests of what was added then, by site.
    """

    anchor: dict[str, Tensor] = field(default_factory=dict)
    momentum: dict[str, Tensor] = field(default_factory=dict)
    added: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def of(link: Link, weights: RoleWeights) -> "OuterState":
        """At the first step. Raises ConfigError for weights that are not exchanged."""
        if weights.buffers():
            names = ", ".join(list(weights.buffers())[:3])
            raise ConfigError("train.link", f"the model's {names} are no weights, and are not exchanged")
        if weights.body is not None and weights.body.tiers:
            raise ConfigError("train.link", "experts are on disk, which is not exchanged", "experts=device")
        live = {name: weight.detach() for name, weight in weights.trainable().items()}
        has_momentum = link.outer.kind == "nesterov"
        return OuterState(
            {name: weight.clone() for name, weight in live.items()},
            {name: torch.zeros_like(weight) for name, weight in live.items()} if has_momentum else {},
        )

    def state(self) -> dict[str, Tree]:
        return {"anchor": {**self.anchor}, "momentum": {**self.momentum}, "added": {**self.added}}
