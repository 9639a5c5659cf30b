"""Send each token to its experts and sum their results.

N tokens, D hidden, X experts, K different experts per token; P pairs of a token and one of its experts, in
order of experts; C the same pairs in order of tokens
"""

from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx


class Dispatch(NamedTuple):
    """The token of every pair; number of tokens per expert; where each token's pairs begin in token order,
    and the place of each of these pairs in expert order.
    """

    token_P: Tensor
    counts_X: list[int]
    first_N: Tensor
    pair_C: Tensor

    @classmethod
    def of(cls, chosen_NK: Tensor, load_X: Tensor) -> Self:
        """From the experts of each token (-1 = none) and the number of tokens per expert."""
        chosen_A = chosen_NK.flatten()
        order_A = chosen_A.argsort(stable=True)  # by expert, then by token; -1 first
        counts_X = load_X.tolist()
        nowhere = len(order_A) - sum(counts_X)
        place_A = torch.empty_like(order_A)
        place_A[order_A] = torch.arange(-nowhere, len(order_A) - nowhere, device=order_A.device)
        begins_N = torch.arange(0, len(order_A), chosen_NK.shape[1], device=order_A.device)
        if nowhere:
            begins_N = (chosen_NK >= 0).sum(1)
            begins_N = begins_N.cumsum(0) - begins_N
            place_A = place_A[place_A >= 0]
        return cls(order_A[nowhere:] // chosen_NK.shape[1], counts_X, begins_N, place_A)

    @classmethod
    def on_device(cls, chosen_NK: Tensor, num_experts: int) -> Self:
        """The same without waiting for the device: pairs without an expert come last; `counts_X` is
        empty.
        """
        chosen_A = chosen_NK.flatten()
        order_A = chosen_A.masked_fill(chosen_A < 0, num_experts).argsort(stable=True)
        places_A = torch.arange(len(order_A), device=order_A.device)
        place_A = torch.empty_like(order_A).scatter_(0, order_A, places_A)
        per_token = chosen_NK.shape[1]
        return cls(order_A // per_token, [], places_A[::per_token], place_A)


def dispatched(x_ND: Tensor, pairs: Dispatch) -> Tensor:
    """[P, D] the token of every pair."""
    return _Dispatched.apply(x_ND, pairs)


def collect(y_PD: Tensor, share_C: Tensor | None, pairs: Dispatch) -> Tensor:
    """[N, D] the sum over each token's pairs, weighted if weights are given."""
    if share_C is None:
        return _Sum.apply(y_PD, pairs)
    return _WeightedSum.apply(y_PD, share_C.to(y_PD.dtype), pairs)


class _DispatchContext(FunctionCtx):
    pairs: Dispatch
    saved_tensors: tuple[Tensor, ...]


class _Dispatched(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _DispatchContext, x_ND: Tensor, pairs: Dispatch) -> Tensor:
        ctx.pairs = pairs
        return x_ND.index_select(0, pairs.token_P)

    @staticmethod
    def backward(ctx: _DispatchContext, *gradients: Tensor) -> tuple[Tensor, None]:
        return _sums(gradients[0], None, ctx.pairs), None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _DispatchContext, y_PD: Tensor, pairs: Dispatch) -> Tensor:
        ctx.pairs = pairs
        return _sums(y_PD, None, pairs)

    @staticmethod
    def backward(ctx: _DispatchContext, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0].index_select(0, ctx.pairs.token_P), None


class _WeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _DispatchContext, y_PD: Tensor, share_C: Tensor, pairs: Dispatch) -> Tensor:
        ctx.pairs = pairs
        ctx.save_for_backward(y_PD, share_C)
        return _sums(y_PD, share_C, pairs)

    @staticmethod
    def backward(ctx: _DispatchContext, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        (y_PD, share_C), pairs = ctx.saved_tensors, ctx.pairs
        gradient_PD = gradients[0].index_select(0, pairs.token_P)
        share_C1 = (gradient_PD * y_PD).sum(-1)[pairs.pair_C]
        share_P = torch.empty_like(share_C)
        share_P[pairs.pair_C] = share_C
        return gradient_PD.mul_(share_P[:, None]), share_C1, None


def _sums(rows_PD: Tensor, share_C: Tensor | None, pairs: Dispatch) -> Tensor:
    """[N, D] sums of each token's pairs, in order; only embedding_bag reads every row just once."""
    if not len(rows_PD):
        return rows_PD.new_zeros(len(pairs.first_N), rows_PD.shape[1])
    return torch.embedding_bag(
        rows_PD.contiguous(), pairs.pair_C, pairs.first_N, mode=0, per_sample_weights=share_C
    )[0]


def counted(numbers: Tensor, most: int) -> Tensor:
    """[most] int64 how often each number below `most` occurs; -1 = none. On a GPU the host does not wait."""
    slots_A = numbers.flatten() + 1
    if not slots_A.is_cuda:
        return slots_A.bincount(minlength=most + 1)[1:]
    empty = slots_A.new_zeros(most + 1)  # bincount would wait for the largest
    return empty.scatter_add_(0, slots_A, torch.ones_like(slots_A))[1:]
