"""A mixture of experts in place of an MLP: a router sends every token to some experts, and a weighted sum of
what they compute is the token's result.

N tokens, D hidden, F inner width, X experts, K experts a token, P tokens sent (N K without those that go
nowhere)
"""

from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atelier.engine.config.experts import MixedBlocks
from atelier.engine.model.placement import local
from atelier.engine.model.routing import Routing, TokenRows, make_router


class ExpertWeights(nn.Module):
    """X MLPs, with a gate (SwiGLU, 2002.05202) or without (gelu). forward: tokens [P, D] sorted by expert and
    the number of each expert's tokens -> [P, D].
    """

    def __init__(self, num_experts: int, hidden: int, inner: int, *, is_gated: bool = True) -> None:
        super().__init__()
        if is_gated:
            self.gate = nn.Parameter(torch.empty(num_experts, inner, hidden))
        self.up = nn.Parameter(torch.empty(num_experts, inner, hidden))
        self.down = nn.Parameter(torch.empty(num_experts, hidden, inner))

    def weights(self) -> list[Tensor]:
        """[gate,] up and down."""
        return list(self.parameters(recurse=False))

    def forward(self, x_PD: Tensor, counts_X: list[int]) -> Tensor:
        return self.compute(x_PD, counts_X)

    def compute(self, x_PD: Tensor, counts_X: list[int]) -> Tensor:
        """Of tokens for the experts that are here."""
        return experts_mlp(x_PD, counts_X, [local(weight) for weight in self.weights()])


def experts_mlp(x_PD: Tensor, counts_X: list[int], weights: list[Tensor]) -> Tensor:
    """`mlp` of each expert's tokens [P, D]; an expert without tokens has gradients of 0."""
    # unbind: indexing each expert would have a full-size backward
    each = zip(*(weight.unbind(0) for weight in weights), strict=True)
    return torch.cat([mlp(x, own) for x, own in zip(x_PD.split(counts_X), each, strict=True)])


def mlp(x: Tensor, weights: tuple[Tensor, ...]) -> Tensor:
    """down(silu(gate x) * up x), or without a gate down(gelu(up x))."""
    *into, down = weights
    if len(into) == 2:
        return F.linear(F.silu(F.linear(x, into[0])) * F.linear(x, into[1]), down)
    return F.linear(F.gelu(F.linear(x, into[0]), approximate="tanh"), down)


class SharedExperts(nn.Module):
    """Experts that every token passes: one MLP as wide as all of them."""

    def __init__(self, hidden: int, inner: int, *, is_gated: bool) -> None:
        super().__init__()
        if is_gated:
            self.gate = nn.Parameter(torch.empty(inner, hidden))
        self.up = nn.Parameter(torch.empty(inner, hidden))
        self.down = nn.Parameter(torch.empty(hidden, inner))

    def forward(self, x_ND: Tensor) -> Tensor:
        return mlp(x_ND, tuple(self.parameters(recurse=False)))


class Mixed(NamedTuple):
    """A mixture's result, and its sums over tokens: those that are optimised by name, how many tokens each
    expert got, how many choices or tokens were lost, and the entropy of the router's probabilities in nats.
    """

    y_BTD: Tensor
    balance: Tensor
    router_z: Tensor
    load_X: Tensor
    lost: Tensor
    entropy: Tensor


class MoE(nn.Module):
    """sum_k p_k expert_k(x), and what is shared: the router says which K experts, and their weights p."""

    def __init__(self, spec: MixedBlocks, number: int) -> None:
        super().__init__()
        self.num_experts = spec.num_experts
        self.router = make_router(spec, number)
        self.experts = ExpertWeights(spec.num_experts, spec.hidden, spec.expert_inner, is_gated=spec.is_gated)
        if spec.experts.shared:
            wide = spec.experts.shared * spec.expert_inner
            self.shared = SharedExperts(spec.hidden, wide, is_gated=spec.is_gated)

    def forward(self, x_BTD: Tensor, tokens_BT: Tensor | None = None) -> Mixed:
        """`tokens_BT`: numbers in the vocabulary, -1 = padding; None = text, whatever it is."""
        x_ND = x_BTD.flatten(0, -2)
        tokens_N = (
            tokens_BT.flatten() if tokens_BT is not None else x_ND.new_zeros(len(x_ND), dtype=torch.long)
        )
        rows = TokenRows(len(x_BTD), tokens_N, self.training)
        routed = cast(Routing, self.router).route(x_ND, rows)
        chosen_NK = routed.chosen_NK.masked_fill(~rows.is_text_N[:, None], -1)
        y_ND, load_X = self._sent(x_ND, chosen_NK, routed.share_NK)
        if hasattr(self, "shared"):
            y_ND = y_ND + self.shared(x_ND)
        nothing = routed.share_NK.new_zeros(())
        entropy = nothing if routed.logits_NX is None else _entropy(routed.logits_NX.detach(), rows.is_text_N)
        return Mixed(
            y_ND.view_as(x_BTD),
            routed.sums.get("balance", nothing),
            routed.sums.get("router_z", nothing),
            load_X,
            nothing + routed.lost,
            entropy,
        )

    def _sent(self, x_ND: Tensor, chosen_NK: Tensor, share_NK: Tensor) -> tuple[Tensor, Tensor]:
        """The weighted sum over each token's experts, and their loads."""
        per_token = chosen_NK.shape[1]
        chosen_P = chosen_NK.flatten()
        order_P = chosen_P.argsort(stable=True)  # by expert, then by token; -1 first
        load_X = (chosen_P + 1).bincount(minlength=self.num_experts + 1)
        nowhere, *counts_X = load_X.tolist()
        y_PD = self.experts(x_ND[order_P[nowhere:] // per_token], counts_X)
        back_P = torch.empty_like(order_P)
        back_P[order_P] = torch.arange(len(order_P), device=order_P.device)
        if nowhere:
            y_PD = torch.cat([y_PD.new_zeros(nowhere, y_PD.shape[1]), y_PD])
        y_NKD = y_PD[back_P].view(*chosen_NK.shape, -1)
        return (y_NKD * share_NK[..., None].to(y_NKD.dtype)).sum(1), load_X[1:]


def _entropy(logits_NX: Tensor, is_text_N: Tensor) -> Tensor:
    log_NX = logits_NX.log_softmax(-1)
    return -((log_NX.exp() * log_NX).sum(-1) * is_text_N).sum()
