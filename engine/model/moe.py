"""A mixture of experts in place of an MLP: a router sends every token to some experts; the result is the
weighted sum of their outputs.

N tokens, D hidden, F inner width, X experts, K different experts per token, P pairs of a token and an expert
"""

from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from atelier.engine.config.blocks import MLPS, Activation, MLPKind
from atelier.engine.config.experts import MixedBlocks
from atelier.engine.config.parallel import ExpertProducts
from atelier.engine.model.dispatch import Dispatch, collect, counted, dispatched
from atelier.engine.model.expert_mlp import experts_mlp, may_stay, mlp
from atelier.engine.model.placement import local
from atelier.engine.model.routing import Routing, TokenRows, make_router


class ExpertWeights(nn.Module):
    """X MLPs, gated (2002.05202) or not.

    forward: tokens [N, D], the experts of each [N, K] (-1 = none) and their weights -> weighted sums of the
    experts' outputs [N, D] (plus `beside` of the tokens, if given), and number of tokens per expert [X].
    """

    def __init__(self, num_experts: int, hidden: int, inner: int, *, kind: MLPKind = "swiglu") -> None:
        super().__init__()
        activation, has_gate = MLPS[kind]
        self.activation: Activation = activation
        if has_gate:
            self.gate = nn.Parameter(torch.empty(num_experts, inner, hidden))
        self.up = nn.Parameter(torch.empty(num_experts, inner, hidden))
        self.down = nn.Parameter(torch.empty(num_experts, hidden, inner))
        self.num_experts = num_experts  # over all ranks
        self.products: ExpertProducts = "auto"
        self.reads_counts = False  # whether the weights come from elsewhere, by the tokens of each expert

    def weights(self) -> list[Tensor]:
        """[gate,] up and down."""
        return list(self.parameters(recurse=False))

    def forward(
        self,
        x_ND: Tensor,
        chosen_NK: Tensor,
        share_NK: Tensor,
        beside: Callable[[Tensor], Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        load_X = counted(chosen_NK, self.num_experts)
        finish = self.start(x_ND, chosen_NK, share_NK, load_X)
        besides_ND = None if beside is None else beside(x_ND)
        y_ND = finish()
        return (y_ND if besides_ND is None else y_ND + besides_ND), load_X

    def start(
        self, x_ND: Tensor, chosen_NK: Tensor, share_NK: Tensor, load_X: Tensor
    ) -> Callable[[], Tensor]:
        """Start communication, if any; the returned function gives the weighted sums."""
        held = [] if self.reads_counts else [local(weight) for weight in self.weights()]
        if held and may_stay(self.products, x_ND, held):
            return lambda: self._on_device(x_ND, chosen_NK, share_NK, load_X, held)
        pairs = Dispatch.of(chosen_NK, load_X)
        is_all = len(pairs.token_P) == chosen_NK.numel()
        share_C = share_NK.flatten() if is_all else share_NK[chosen_NK >= 0]
        return lambda: self.here(x_ND, pairs, share_C)

    def here(self, x_ND: Tensor, pairs: Dispatch, share_C: Tensor) -> Tensor:
        """The weighted sums [N, D] over this rank's experts."""
        return collect(self.compute(dispatched(x_ND, pairs), pairs.counts_X), share_C, pairs)

    def compute(self, x_PD: Tensor, counts_X: list[int]) -> Tensor:
        """Outputs for tokens [P, D] sorted by this rank's experts."""
        weights = [local(weight) for weight in self.weights()]
        return experts_mlp(x_PD, counts_X, weights, self.activation, self.products)

    def _on_device(
        self, x_ND: Tensor, chosen_NK: Tensor, share_NK: Tensor, load_X: Tensor, weights: list[Tensor]
    ) -> Tensor:
        """The weighted sums, without waiting for the numbers of tokens per expert."""
        pairs = Dispatch.on_device(chosen_NK, self.num_experts)
        y_PD = experts_mlp(dispatched(x_ND, pairs), load_X, weights, self.activation)
        return collect(y_PD, share_NK.masked_fill(chosen_NK < 0, 0.0).flatten(), pairs)


class SharedExperts(nn.Module):
    """Experts that every token passes, as one MLP of their total width."""

    def __init__(self, hidden: int, inner: int, *, kind: MLPKind = "swiglu") -> None:
        super().__init__()
        activation, has_gate = MLPS[kind]
        self.activation: Activation = activation
        if has_gate:
            self.gate = nn.Parameter(torch.empty(inner, hidden))
        self.up = nn.Parameter(torch.empty(inner, hidden))
        self.down = nn.Parameter(torch.empty(hidden, inner))

    def forward(self, x_ND: Tensor) -> Tensor:
        return mlp(x_ND, tuple(self.parameters(recurse=False)), self.activation)


class Mixed(NamedTuple):
    """A mixture's result and its sums over tokens: losses by name, tokens per expert, lost choices or tokens,
    and the entropy of the router's probabilities in nats.
    """

    y_BTD: Tensor
    balance: Tensor
    router_z: Tensor
    load_X: Tensor
    lost: Tensor
    entropy: Tensor


class MoE(nn.Module):
    """sum_k p_k expert_k(x), plus shared experts; the router chooses K experts and their weights p."""

    def __init__(self, spec: MixedBlocks, number: int) -> None:
        super().__init__()
        self.num_experts = spec.num_experts
        self.router = make_router(spec, number)
        self.experts = ExpertWeights(spec.num_experts, spec.hidden, spec.expert_inner, kind=spec.expert_mlp)
        if spec.experts.shared:
            wide = spec.experts.shared * spec.expert_inner
            self.shared = SharedExperts(spec.hidden, wide, kind=spec.expert_mlp)

    def forward(self, x_BTD: Tensor, tokens_BT: Tensor | None = None) -> Mixed:
        """`tokens_BT`: token ids, -1 = padding; None = text without known ids."""
        x_ND = x_BTD.flatten(0, -2)
        tokens_N = (
            tokens_BT.flatten() if tokens_BT is not None else x_ND.new_zeros(len(x_ND), dtype=torch.long)
        )
        rows = TokenRows(len(x_BTD), tokens_N, self.training)
        routed = cast(Routing, self.router).route(x_ND, rows)
        chosen_NK = routed.chosen_NK.masked_fill(~rows.is_text_N[:, None], -1)
        beside = self.shared if hasattr(self, "shared") else None
        y_ND, load_X = self.experts(x_ND, chosen_NK, routed.share_NK, beside)
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


def _entropy(logits_NX: Tensor, is_text_N: Tensor) -> Tensor:
    log_NX = logits_NX.log_softmax(-1)
    return -((log_NX.exp() * log_NX).sum(-1) * is_text_N).sum()
