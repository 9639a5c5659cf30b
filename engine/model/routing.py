"""Inputs, outputs and shared functions of routers. Kind `topk` is engine/model/router/topk.py, whose `build`
returns a module with a method `route`.

N tokens, D hidden, X experts, K experts per token, S tokens of a group
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from atelier.engine.config.experts import Combine, MixedBlocks
from atelier.engine.config.kind_files import kind_module


class TokenRows(NamedTuple):
    """The tokens that a router sees: number of rows, token ids (-1 = padding, which no expert computes), and
    whether tokens may compete.
    """

    count: int
    tokens_N: Tensor
    is_training: bool

    @property
    def is_text_N(self) -> Tensor:
        return self.tokens_N >= 0


class Routed(NamedTuple):
    """The experts of each token [N, K], -1 if fewer; their weights; the logits (None = none); the loss sums
    over tokens; number of choices without room, or of tokens without expert.
    """

    chosen_NK: Tensor
    share_NK: Tensor
    logits_NX: Tensor | None
    sums: dict[str, Tensor]
    lost: Tensor | int = 0


class Routing(Protocol):
    def route(self, x_ND: Tensor, rows: TokenRows) -> Routed: ...


class MatrixRouter(nn.Module):
    """A router with logits from a matrix [X, D]."""

    def __init__(self, spec: MixedBlocks) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(spec.num_experts, spec.hidden))
        self.is_sum = spec.experts.combine == "sum"
        self.per_token, self.group = spec.experts_per_token, spec.experts.group

    def logits(self, x_ND: Tensor) -> tuple[Tensor, Tensor]:
        """[N, X] logits in the type of products, and in float32 or more."""
        logits_NX = nn.functional.linear(x_ND, self.weight)
        return logits_NX, logits_NX.to(torch.promote_types(logits_NX.dtype, torch.float32))


def make_router(spec: MixedBlocks, number: int) -> nn.Module:
    """The router of block `number`."""
    own = spec.experts.router
    module = kind_module("model/router", own.kind, "build")
    return module.build(spec, own, number)


def combined(logits_NX: Tensor, score_NX: Tensor | None, chosen_NK: Tensor, combine: Combine) -> Tensor:
    """The weights [N, K] of the chosen experts, from scores if given, otherwise from logits."""
    if combine == "sum":
        return torch.ones_like(chosen_NK, dtype=logits_NX.dtype)
    if score_NX is not None:
        share_NK = score_NX.gather(-1, chosen_NK)
        return share_NK if combine == "softmax_all" else share_NK / share_NK.sum(-1, keepdim=True)
    if combine == "softmax_all":
        return logits_NX.softmax(-1).gather(-1, chosen_NK)
    return logits_NX.gather(-1, chosen_NK).softmax(-1)


def first_come(chosen_NK: Tensor, rows: TokenRows, group: int, number: int, capacity: float) -> Tensor:
    """`chosen_NK` with -1 for choices beyond an expert's capacity in its group. Earlier tokens come first, so
    no token depends on a later one of its row.
    """
    per_token = chosen_NK.shape[1]
    is_text_GP = rows.is_text_N[:, None].expand_as(chosen_NK).reshape(rows.count // group, -1)
    chosen_GP = chosen_NK.view(rows.count // group, -1)
    room = max(1, int(capacity * chosen_GP.shape[1] / number))
    is_its_GPX = nn.functional.one_hot(chosen_GP, number) * is_text_GP[..., None]
    place_GP = (is_its_GPX.cumsum(1) * is_its_GPX).sum(-1)  # 1 = the first of its expert
    return chosen_GP.masked_fill(place_GP > room, -1).view(-1, per_token)
