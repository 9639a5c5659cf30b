"""A product-key memory (Lample et al., 1907.05242): sparse look-ups in n * n value rows at the cost of 2 n
scores.

N tokens, H heads, E query width, h = E / 2, n keys per half, K pairs per token and head, D hidden,
M = 2 H n keys of both halves of all heads
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atelier.engine.config.memory import ProductKeyMemory
from atelier.engine.model.dispatch import counted

VALUES = "values"  # weight with a row for every pair of keys


class ProductKeys(nn.Module):
    """sum over heads and their K best pairs (i, j) of softmax_K(q1 . k1_i + q2 . k2_j) value_{i n + j}; q1
    and q2 are the halves of a head's query. forward: [B, T, D] -> [B, T, D]; with token ids [B, T] (-1 =
    padding) and while training also how often each key of both halves is in a pair that is read, [2 H n].

    `read`: how to read a weight; tensor parallelism sets it, because a rank's `values` are some columns.
    """

    def __init__(self, spec: ProductKeyMemory, hidden: int, norm_eps: float) -> None:
        super().__init__()
        self.heads, self.width, self.per_token = spec.heads, spec.width, spec.per_token
        shapes = spec.shapes(hidden)
        self.queries = nn.Parameter(torch.empty(shapes["queries"]))
        self.has_norm = spec.query_norm
        if spec.query_norm:
            self.norm = nn.RMSNorm(spec.width, eps=norm_eps)
        self.keys = nn.Parameter(torch.empty(shapes["keys"]))
        self.values = nn.Parameter(torch.empty(shapes["values"]))
        self.read: Callable[[Tensor], Tensor] = _as_it_is

    def forward(self, x_BTD: Tensor, tokens_BT: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        values = self.read(self.values)
        query_NHE = F.linear(x_BTD.flatten(0, -2), self.read(self.queries)).unflatten(-1, (self.heads, -1))
        with torch.autocast(query_NHE.device.type, enabled=False):
            exact = torch.promote_types(query_NHE.dtype, torch.float32)  # 16-bit scores often tie
            query_NHE = query_NHE.to(exact)
            if self.has_norm:
                weight_E = self.read(self.norm.weight).to(exact)
                query_NHE = F.rms_norm(query_NHE, (self.width,), weight_E, self.norm.eps)
            scores_NHK, pairs_NHK = best_pairs(query_NHE, self.read(self.keys).to(exact), self.per_token)
            share_NHK = scores_NHK.softmax(-1).to(values.dtype)
            y_ND = F.embedding_bag(
                pairs_NHK.flatten(1), values, per_sample_weights=share_NHK.flatten(1), mode="sum"
            )
        reads_M = None
        if self.training and tokens_BT is not None:
            reads_M = key_reads(pairs_NHK, tokens_BT.flatten() >= 0, self.keys.shape[2])
        return y_ND.unflatten(0, x_BTD.shape[:-1]), reads_M


def key_reads(pairs_NHK: Tensor, is_text_N: Tensor, number: int) -> Tensor:
    """How often each key is in a chosen pair: [2 H n], by half, head and key."""
    heads = pairs_NHK.shape[1]
    first_H1 = number * torch.arange(heads, device=pairs_NHK.device)[:, None]
    halves = [pairs_NHK // number + first_H1, pairs_NHK % number + first_H1 + heads * number]
    keys_2NHK = torch.stack(halves).masked_fill(~is_text_N[:, None, None], -1)
    return counted(keys_2NHK, 2 * heads * number)


def read_metrics(reads_M: Tensor, heads: int) -> dict[str, float]:
    """`dead`: the share of keys that no token read; `kl`: the Kullback-Leibler divergence of the reads from
    equal ones, in nats, the mean over both halves of all heads (0 = all alike, log n = one key only).
    """
    share_MK = reads_M.double().view(2 * heads, -1)
    share_MK = share_MK / share_MK.sum(-1, keepdim=True).clamp(min=1)
    kl_M = torch.special.xlogy(share_MK, share_MK * share_MK.shape[-1]).sum(-1)
    return {"dead": float((reads_M == 0).double().mean()), "kl": float(kl_M.mean())}


def best_pairs(query_NHE: Tensor, keys_2HnK: Tensor, per_token: int) -> tuple[Tensor, Tensor]:
    """The K best of the n * n sums of one score per half, best first, with their numbers i n + j.

    Both halves of a best pair are among the K best of their half. If these rank a-th and b-th, a b pairs are
    at least as good, so only about K log K pairs with a b <= K are compared. Ties: higher first score first,
    then smaller i, then likewise j.
    """
    number = keys_2HnK.shape[2]
    of_half = min(per_token, number)
    found = [
        _best(torch.einsum("nhe,hke->nhk", part_NHh, keys_HnK), of_half)
        for part_NHh, keys_HnK in zip(query_NHE.chunk(2, dim=-1), keys_2HnK, strict=True)
    ]
    (first_NHK, i_NHK), (second_NHK, j_NHK) = found
    with torch.no_grad():  # do not keep all candidates' sums for the backward pass
        one_C, two_C = _candidates(of_half, per_token, query_NHE.device)
        chosen_NHK = _places(first_NHK[..., one_C] + second_NHK[..., two_C], per_token)
        one_NHK, two_NHK = one_C[chosen_NHK], two_C[chosen_NHK]
    scores_NHK = first_NHK.gather(-1, one_NHK) + second_NHK.gather(-1, two_NHK)
    return scores_NHK, i_NHK.gather(-1, one_NHK) * number + j_NHK.gather(-1, two_NHK)


def _candidates(of_half: int, per_token: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The ranks in both halves of pairs that may be among the best, ordered by the first, then by the
    second.
    """
    place = torch.arange(1, of_half + 1, device=device)
    is_one = (place[:, None] * place <= per_token).flatten()
    count = sum(min(of_half, per_token // number) for number in range(1, of_half + 1))
    pairs_C = (~is_one).to(torch.int8).argsort(stable=True)[:count]  # of known length, unlike nonzero
    return pairs_C // of_half, pairs_C % of_half


def _best(scores: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """The largest numbers of the last dim, largest first, with places; among equal ones the first."""
    places = _places(scores.detach(), number)
    return scores.gather(-1, places), places


def _places(scores: Tensor, number: int) -> Tensor:
    places = scores.sort(dim=-1, descending=True, stable=True).indices
    return places[..., :number].contiguous()  # a view would keep all places in memory


def _as_it_is(weight: Tensor) -> Tensor:
    return weight
