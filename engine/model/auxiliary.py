"""Modules that a student has only during distillation: added to its plain model, never exported.

B rows, T tokens, D hidden, H query heads, K key heads, E head width
"""

from typing import Any, cast

import torch
from torch import Tensor, nn

from atelier.engine.config.blocks import Blocks
from atelier.engine.model.attention import rotate
from atelier.engine.model.contract import Relations, Split
from atelier.engine.model.transformer import make_norm

LAYER, PROJECTION = "auxiliary", "projection"


class Relating(nn.Module):
    """The query and key projections of an attention, rotated (RoPE) if angles are given; computes no
    attention.
    """

    def __init__(self, spec: Blocks) -> None:
        super().__init__()
        self.head_width = spec.head_width
        self.query = nn.Linear(spec.hidden, spec.num_heads * spec.head_width, bias=False)
        self.key = nn.Linear(spec.hidden, spec.kv_heads * spec.head_width, bias=False)

    def forward(self, x_BTD: Tensor, rope: Tensor | None) -> Relations:
        heads = (*x_BTD.shape[:2], -1, self.head_width)
        query, key = self.query(x_BTD).view(heads), self.key(x_BTD).view(heads)
        if rope is not None:
            query, key = rotate(query, rope), rotate(key, rope)
        return Relations(query.transpose(1, 2), key.transpose(1, 2))


class Auxiliary(nn.Module):
    """An extra layer on top of a student that is compared with its teacher's last layer. Its attention's
    gradient reaches all layers below (auxiliary layer distillation, 2112.12731, section 5).

    It has only the weights of its attention distribution; others would get no gradient.
    """

    def __init__(self, spec: Blocks) -> None:
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


def add_layer(model: nn.Module) -> None:
    """Stack the auxiliary layer on a student's plain model, in place."""
    offering, weight = cast(Any, model), next(model.parameters())
    with torch.device(weight.device):
        offering.auxiliary = Auxiliary(offering.spec).to(weight.dtype)


def teach_last_block(model: nn.Module) -> None:
    """Let gradients flow into the attention of a student's last block, in place."""
    cast(Any, model).blocks[-1].is_taught = True


def add_projection(model: nn.Module, width: int) -> None:
    """Add the matrix from the student's width to the teacher's, in place; all objectives share it."""
    if hasattr(model, PROJECTION):
        return
    offering, weight = cast(Any, model), next(model.parameters())
    with torch.device(weight.device):
        offering.projection = nn.Linear(offering.spec.hidden, width, bias=False).to(weight.dtype)


def is_auxiliary(weight: str) -> bool:
    """Whether a weight is used for distillation only."""
    return weight.split(".")[0] in (LAYER, PROJECTION)
