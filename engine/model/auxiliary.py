"""Modules that a student has only while it distils: added to its plain model from outside, never exported.

B rows, T tokens, D hidden, H query heads, K key heads, E head width
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from atelier.engine.config.objective.attention import Attention
from atelier.engine.config.registry import ObjectiveSpec
from atelier.engine.model.attention import rotate
from atelier.engine.model.contract import Relations, Split
from atelier.engine.model.transformer import make_norm

LAYER, PROJECTION = "auxiliary", "projection"


class Relating(nn.Module):
    """The query and key projections of an attention, without the attention itself."""

    def __init__(self, spec: Any) -> None:
        super().__init__()
        self.head_dim = spec.head_dim
        self.query = nn.Linear(spec.hidden, spec.num_heads * spec.head_dim, bias=False)
        self.key = nn.Linear(spec.hidden, spec.kv_heads * spec.head_dim, bias=False)

    def forward(self, x_BTD: Tensor, rope: Tensor | None) -> Relations:
        heads = (*x_BTD.shape[:2], -1, self.head_dim)
        query, key = self.query(x_BTD).view(heads), self.key(x_BTD).view(heads)
        if rope is not None:
            query, key = rotate(query, rope), rotate(key, rope)
        return Relations(query.transpose(1, 2), key.transpose(1, 2))


class Auxiliary(nn.Module):
    """An extra layer on top of a student, to be compared with its teacher's last one, so that the gradient of
    its attention reaches every part of the layers below (auxiliary layer distillation, 2112.12731, section
    5).

    Only the weights that define its attention distribution exist: the rest would get no gradient.
    """

    def __init__(self, spec: Any) -> None:
        super().__init__()
        self.norm = make_norm(spec)
        self.attention = Relating(spec)

    def forward(self, x_BTD: Tensor, rope: Tensor | None) -> Relations:
        return self.attention(self.norm(x_BTD), rope)


SPLITS: dict[str, Split] = {
    f"{LAYER}.norm": "tokens",
    f"{LAYER}.attention": "inside",
    f"{LAYER}.attention.query": "out",
    f"{LAYER}.attention.key": "out",
    PROJECTION: "out",
}


def add(model: nn.Module, objectives: Iterable[ObjectiveSpec], *, teacher_hidden: int) -> None:
    """Add the modules that these objectives need, in place: for attention the auxiliary layer, or gradients
    into the last block; for hidden states the projection to the teacher's width.
    """
    offering: Any = model
    weight = next(model.parameters())
    for objective in objectives:
        if isinstance(objective, Attention):
            if objective.auxiliary:
                with torch.device(weight.device):
                    offering.auxiliary = Auxiliary(offering.spec).to(weight.dtype)
            else:
                offering.blocks[-1].is_taught = True
        if objective.compares == "hidden" and not hasattr(model, PROJECTION):
            with torch.device(weight.device):
                offering.projection = nn.Linear(offering.spec.hidden, teacher_hidden, bias=False).to(
                    weight.dtype
                )


def is_auxiliary(weight: str) -> bool:
    """Whether a weight is used for distillation only."""
    return weight.split(".")[0] in (LAYER, PROJECTION)
