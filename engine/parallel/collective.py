"""Differentiable collectives over a process group of C ranks."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.distributed import ProcessGroup


def all_parts(part: Tensor, group: ProcessGroup) -> Tensor:
    """All-gather `part`, of the same shape on every rank, to [C, ...]; no gradient."""
    size = dist.get_world_size(group)
    result = part.new_empty((size * part.shape[0], *part.shape[1:]))  # gloo takes no further dim
    dist.all_gather_into_tensor(result, part.contiguous(), group=group)
    return result.view(size, *part.shape)


class _GroupContext(FunctionCtx):
    group: ProcessGroup


class _ExchangeContext(_GroupContext):
    sent: list[int]
    received: list[int]


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _GroupContext, part: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return all_parts(part, group)

    @staticmethod
    def backward(ctx: _GroupContext, *gradients: Tensor) -> tuple[Tensor, None]:
        whole = gradients[0].flatten(0, 1).contiguous()
        part = whole.new_empty(gradients[0].shape[1:])
        dist.reduce_scatter_tensor(part, whole, group=ctx.group)
        return part, None


def gather_rows(part: Tensor, group: ProcessGroup) -> Tensor:
    """All-gather `part` to [C, ...]; backward reduce-scatters the gradient."""
    return _GatherRows.apply(part, group)


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _GroupContext, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: _GroupContext, *gradients: Tensor) -> tuple[Tensor, None]:
        whole = gradients[0].clone()
        dist.all_reduce(whole, group=ctx.group)
        return whole, None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, group: ProcessGroup) -> Tensor:
        result = x.clone()
        dist.all_reduce(result, group=group)
        return result

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def enter_split(x: Tensor, group: ProcessGroup) -> Tensor:
    """Identity; backward all-reduces the gradient (f of 1909.08053, figure 3)."""
    return _Enter.apply(x, group)


def leave_split(x: Tensor, group: ProcessGroup) -> Tensor:
    """All-reduce; backward is the identity (g of 1909.08053, figure 3)."""
    return _Leave.apply(x, group)


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _ExchangeContext, rows: Tensor, sent: list[int], received: list[int], group: ProcessGroup
    ) -> Tensor:
        ctx.sent, ctx.received, ctx.group = sent, received, group
        return _all_to_all(rows, sent, received, group)

    @staticmethod
    def backward(ctx: _ExchangeContext, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return _all_to_all(gradients[0], ctx.received, ctx.sent, ctx.group), None, None, None


def exchange(rows: Tensor, sent: list[int], received: list[int], group: ProcessGroup) -> Tensor:
    """All-to-all of rows [sum(sent), ...] -> [sum(received), ...]: the first `sent[0]` rows go to rank 0, and
    so on; those received are in order of their source. Backward sends the gradients back.
    """
    return _Exchange.apply(rows, sent, received, group)


def _all_to_all(rows: Tensor, sent: list[int], received: list[int], group: ProcessGroup) -> Tensor:
    result = rows.new_empty((sum(received), *rows.shape[1:]))
    dist.all_to_all_single(result, rows.contiguous(), received, sent, group=group)
    return result
