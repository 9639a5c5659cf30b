"""BASE layers (engine/config/router/base.py): assign equally many tokens to each expert, with the largest sum
of scores. CPUs solve this exactly; GPUs by an auction (Bertsekas, 1988), without moving scores to the host.

N tokens, X experts, S tokens of a group, C tokens of an expert
"""

import torch
from torch import Tensor

from atelier.engine.config.experts import MixedBlocks
from atelier.engine.config.router.base import Base
from atelier.engine.model.routing import MatrixRouter, Routed, TokenRows

EPSILONS = (1e-1, 1e-2, 1e-3)  # of the scores' range: least increments of bids, one auction after another
LARGEST = 1e30  # score
ROUNDS = 8  # between looks at whether all tokens are assigned: the host waits at each


class BaseRouter(MatrixRouter):
    """One expert per token, weighted by the sigmoid of its score (2103.16716, section 3). If tokens must not
    depend on each other (held-out text, generation), each goes to its best expert.
    """

    def route(self, x_ND: Tensor, rows: TokenRows) -> Routed:
        _, wide_NX = self.logits(x_ND)
        if rows.is_training:
            text_NX = wide_NX.detach() * rows.is_text_N[:, None]  # padding may go to any expert
            score_GSX = text_NX.view(rows.count // self.group, -1, wide_NX.shape[-1])
            chosen_N1 = torch.cat([assigned(score_SX) for score_SX in score_GSX])[:, None]
        else:
            chosen_N1 = wide_NX.argmax(-1, keepdim=True)
        share_N1 = wide_NX.gather(-1, chosen_N1).sigmoid()
        return Routed(chosen_N1, torch.ones_like(share_N1) if self.is_sum else share_N1, wide_NX, {})


def assigned(score_SX: Tensor) -> Tensor:
    """[S] the expert of each token; each expert gets S / X tokens."""
    score_SX = score_SX.nan_to_num()  # the solver refuses NaN before the step's health is judged
    return _solved(score_SX) if score_SX.device.type == "cpu" else auctioned(score_SX)


def _solved(score_SX: Tensor) -> Tensor:
    """The best assignment. O(S^3): 0.3 to 2 s for 2048 tokens and 64 experts."""
    from scipy.optimize import linear_sum_assignment  # 0.3 s: only this router needs it

    size, number = score_SX.shape
    places_SS = score_SX.double().numpy().repeat(size // number, axis=1)
    _, place_S = linear_sum_assignment(places_SS, maximize=True)
    return torch.from_numpy(place_S // (size // number))


def auctioned(score_SX: Tensor) -> Tensor:
    """An assignment whose sum of scores is at most S times the last epsilon of the range below the best one.

    Each round, every token without an expert bids for the one that it gains most from, by what it would lose
    at its second choice; each expert keeps its C highest bids and asks for the lowest of them from then on.
    Auctions with smaller increments begin with the prices of those before.
    """
    size, number = score_SX.shape
    if number == 1:
        return score_SX.new_zeros(size, dtype=torch.long)
    score_SX = score_SX.double().clamp(-LARGEST, LARGEST)
    score_SX = score_SX - score_SX.amin()
    span = score_SX.amax()
    span = torch.where(span > 0, span, 1.0)
    price_X, chosen_S = score_SX.new_zeros(number), score_SX.new_zeros(size, dtype=torch.long)
    for epsilon in EPSILONS:
        chosen_S, bid_S = torch.full_like(chosen_S, -1), score_SX.new_zeros(size)
        while bool((chosen_S < 0).any()):
            for _ in range(ROUNDS):
                chosen_S, bid_S, price_X = _bid(score_SX, epsilon * span, chosen_S, bid_S, price_X)
    return chosen_S


def _bid(
    score_SX: Tensor, least: Tensor, chosen_S: Tensor, bid_S: Tensor, price_X: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One round: experts, bids and prices after it."""
    size, number = score_SX.shape
    gain_S2, best_S2 = (score_SX - price_X).topk(2)
    best_S = best_S2[:, 0]
    raised_S = price_X[best_S] + gain_S2[:, 0] - gain_S2[:, 1] + least
    is_free_S = chosen_S < 0
    asked_S, bid_S = torch.where(is_free_S, best_S, chosen_S), torch.where(is_free_S, raised_S, bid_S)
    bid_SX = torch.full_like(score_SX, -torch.inf).scatter_(1, asked_S[:, None], bid_S[:, None])
    kept_CX, token_CX = bid_SX.topk(size // number, dim=0)
    is_bid_CX = kept_CX > -torch.inf
    expert_CX = torch.arange(number, device=score_SX.device).expand_as(token_CX)
    chosen_S = torch.full((size + 1,), -1, device=score_SX.device)  # the last one takes what is no bid
    chosen_S[torch.where(is_bid_CX, token_CX, size).flatten()] = expert_CX.flatten()
    price_X = torch.where(is_bid_CX[-1], kept_CX[-1].maximum(price_X), price_X)
    return chosen_S[:size], bid_S, price_X


def build(spec: MixedBlocks, _own: Base, _number: int) -> BaseRouter:
    return BaseRouter(spec)
