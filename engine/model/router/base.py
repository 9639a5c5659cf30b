"""BASE layers (engine/config/router/base.py): assign equally many tokens to each expert, with the largest sum
of scores. CPUs solve this exactly; GPUs by an auction (Bertsekas, 1988), without moving scores to the host.

N tokens, X experts, S tokens of a group, C tokens of an expert
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from atelier.engine.config.experts import MixedBlocks
from atelier.engine.config.router.base import Base
from atelier.engine.model.routing import MatrixRouter, Routed, TokenRows

EPSILONS = (1e-1, 1e-2, 1e-3)  # of the scores' range: least increments of bids, one auction after another
SPREAD = 8  # mean distances from the mean: the range of scores without outliers
MOST_ROUNDS = 1024  # of an auction
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
            is_text_GS = rows.is_text_N.view(score_GSX.shape[:2])
            groups = zip(score_GSX, is_text_GS, strict=True)
            chosen_N1 = torch.cat([assigned(score_SX, is_text_S) for score_SX, is_text_S in groups])[:, None]
        else:
            chosen_N1 = wide_NX.argmax(-1, keepdim=True)
        share_N1 = wide_NX.gather(-1, chosen_N1).sigmoid()
        return Routed(chosen_N1, torch.ones_like(share_N1) if self.is_sum else share_N1, wide_NX, {})


def assigned(score_SX: Tensor, is_text_S: Tensor | None = None) -> Tensor:
    """[S] the expert of each token; each expert gets S / X tokens, rounded up. Padding may go to any expert;
    it is added where X does not divide S.
    """
    size, missing = len(score_SX), -len(score_SX) % score_SX.shape[1]
    score_SX = score_SX.nan_to_num()  # the solver refuses NaN before the step's health is judged
    if missing:
        is_text_S = score_SX.new_ones(size, dtype=torch.bool) if is_text_S is None else is_text_S
        score_SX, is_text_S = F.pad(score_SX, (0, 0, 0, missing)), F.pad(is_text_S, (0, missing))
    found_S = _solved(score_SX) if score_SX.device.type == "cpu" else auctioned(score_SX, is_text_S)
    return found_S[:size]


def _solved(score_SX: Tensor) -> Tensor:
    """The best assignment. O(S^3): 0.3 to 2 s for 2048 tokens and 64 experts."""
    from scipy.optimize import linear_sum_assignment  # 0.3 s: only this router needs it

    size, number = score_SX.shape
    places_SS = score_SX.double().numpy().repeat(size // number, axis=1)
    _, place_S = linear_sum_assignment(places_SS, maximize=True)
    return torch.from_numpy(place_S // (size // number))


def auctioned(score_SX: Tensor, is_text_S: Tensor | None = None) -> Tensor:
    """An assignment whose sum of scores is at most S times the last epsilon of the range below the best one,
    unless the last auction takes more than MOST_ROUNDS: then the tokens that are left fill the experts.

    Each round, every token without an expert bids for the one that it gains most from, by what it would lose
    at its second choice; each expert keeps its C highest bids and asks for the lowest of them from then on.
    Auctions with smaller increments begin with the prices of those before. Padding bids for nothing and
    fills the experts.
    """
    size, number = score_SX.shape
    if number == 1:
        return score_SX.new_zeros(size, dtype=torch.long)
    score_SX = score_SX.double().clamp(-LARGEST, LARGEST)
    score_SX = score_SX - score_SX.amin()
    span = torch.minimum(score_SX.amax(), SPREAD * (score_SX - score_SX.mean()).abs().mean())
    span = torch.where(span > 0, span, 1.0)
    bids_S = torch.ones(size, dtype=torch.bool, device=score_SX.device) if is_text_S is None else is_text_S
    price_X, chosen_S = score_SX.new_zeros(number), score_SX.new_zeros(size, dtype=torch.long)
    for epsilon in EPSILONS:
        chosen_S, bid_S = torch.full_like(chosen_S, -1), score_SX.new_zeros(size)
        for _ in range(0, MOST_ROUNDS, ROUNDS):
            if not bool(((chosen_S < 0) & bids_S).any()):
                break
            for _ in range(ROUNDS):
                chosen_S, bid_S, price_X = _bid(
                    score_SX, epsilon * span, chosen_S, bid_S, price_X, bids_S=bids_S
                )
    return _filled(chosen_S, number)


def _filled(chosen_S: Tensor, number: int) -> Tensor:
    """Tokens without an expert take the places that are left, in order."""
    is_free_S = chosen_S < 0
    taken_X = torch.zeros(number + 1, dtype=torch.long, device=chosen_S.device).index_add_(
        0, torch.where(is_free_S, number, chosen_S), torch.ones_like(chosen_S)
    )[:number]
    ends_X = (len(chosen_S) // number - taken_X).cumsum(0)
    places_S = is_free_S.cumsum(0) - 1
    return torch.where(is_free_S, torch.searchsorted(ends_X, places_S, right=True), chosen_S)


def _bid(
    score_SX: Tensor, least: Tensor, chosen_S: Tensor, bid_S: Tensor, price_X: Tensor, *, bids_S: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One round of the tokens `bids_S`: experts, bids and prices after it."""
    size, number = score_SX.shape
    gain_S2, best_S2 = (score_SX - price_X).topk(2)
    best_S = best_S2[:, 0]
    raised_S = price_X[best_S] + gain_S2[:, 0] - gain_S2[:, 1] + least
    is_free_S = chosen_S < 0
    asked_S, bid_S = torch.where(is_free_S, best_S, chosen_S), torch.where(is_free_S, raised_S, bid_S)
    offered_S = torch.where(bids_S, bid_S, -torch.inf)
    bid_SX = torch.full_like(score_SX, -torch.inf).scatter_(1, asked_S[:, None], offered_S[:, None])
    kept_CX, token_CX = bid_SX.topk(size // number, dim=0)
    is_bid_CX = kept_CX > -torch.inf
    expert_CX = torch.arange(number, device=score_SX.device).expand_as(token_CX)
    chosen_S = torch.full((size + 1,), -1, device=score_SX.device)  # the last one takes what is no bid
    chosen_S[torch.where(is_bid_CX, token_CX, size).flatten()] = expert_CX.flatten()
    price_X = torch.where(is_bid_CX[-1], kept_CX[-1].maximum(price_X), price_X)
    return chosen_S[:size], bid_S, price_X


def build(spec: MixedBlocks, _own: Base, _number: int) -> BaseRouter:
    return BaseRouter(spec)
