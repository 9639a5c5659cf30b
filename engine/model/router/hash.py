"""Hash layers (engine/config/router/hash.py): a token's experts follow from its id.

N tokens, X experts, K experts per token
"""

import torch
from torch import Tensor, nn

from atelier.engine.config.experts import MixedBlocks
from atelier.engine.config.router.hash import Hash
from atelier.engine.model.hashing import A, mixed
from atelier.engine.model.routing import Routed, TokenRows


class HashRouter(nn.Module):
    """K different experts of equal weight; the choice differs from block to block."""

    def __init__(self, spec: MixedBlocks, number: int) -> None:
        super().__init__()
        self.number, self.per_token, self.num_experts = number, spec.experts_per_token, spec.num_experts
        self.is_sum = spec.experts.combine == "sum"

    def route(self, x_ND: Tensor, rows: TokenRows) -> Routed:
        drawn_N = mixed(mixed(rows.tokens_N + A) + self.number)
        # first expert, then steps that reach each other expert once
        first_N = drawn_N % self.num_experts
        others_N = mixed(drawn_N + A) % max(1, self.num_experts - 1)
        places_K = torch.arange(self.per_token, device=x_ND.device)
        step_NK = (others_N[:, None] + places_K - 1) % max(1, self.num_experts - 1) + 1
        chosen_NK = (first_N[:, None] + torch.where(places_K > 0, step_NK, 0)) % self.num_experts
        share = 1.0 if self.is_sum else 1 / self.per_token
        return Routed(chosen_NK, torch.full(chosen_NK.shape, share, device=x_ND.device), None, {})


def build(spec: MixedBlocks, _own: Hash, number: int) -> HashRouter:
    return HashRouter(spec, number)
