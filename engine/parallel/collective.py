"""Differentiable collectives over a process group of C ranks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.distributed import ProcessGroup


def all_parts(part: Tensor, group: ProcessGroup) -> Tensor:
    """All-gather `part`, of equal shape on every rank, to [C, ...]; no gradient."""
    size = dist.get_world_size(group)
    result = part.new_empty((size * part.shape[0], *part.shape[1:]))  # gloo supports no extra dim
    dist.all_gather_into_tensor(result, part.contiguous(), group=group)
    return result.view(size, *part.shape)


class _GroupContext(FunctionCtx):
    group: ProcessGroup


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


@dataclass
class Traffic:
    """Messages and bytes that this rank has sent to other nodes."""

    messages: int = 0
    bytes: int = 0


class Exchange:
    """One all-to-all of rows and, in the backward pass, of their gradients. The first `sent[0]` rows go to
    rank 0, and so on; received rows are ordered by source. Rows sent to ranks with `is_far` are counted.
    """

    def __init__(
        self,
        sent: Sequence[int],
        received: Sequence[int],
        group: ProcessGroup,
        *,
        is_far: Sequence[bool] = (),
        traffic: Traffic | None = None,
    ) -> None:
        self.sent, self.received, self.group = list(sent), list(received), group
        self.is_far, self.traffic = is_far, traffic
        self._work: dist.Work | None = None
        self._kept: tuple[Tensor, Tensor] | None = None  # buffers being sent and received

    def start(self, rows: Tensor) -> Callable[[], Tensor]:
        """Start sending rows [sum(sent), ...]; the returned function waits for the received ones."""
        begun = _Begin.apply(rows, self)
        return lambda: _End.apply(begun, self)

    def begin(self, rows: Tensor, *, is_backward: bool = False) -> Tensor:
        sent, received = (self.received, self.sent) if is_backward else (self.sent, self.received)
        rows = rows.contiguous()
        result = rows.new_empty((sum(received), *rows.shape[1:]))
        if self.traffic is not None:
            far = [count for count, is_far in zip(sent, self.is_far, strict=True) if is_far]
            self.traffic.messages += len(far)
            self.traffic.bytes += sum(far) * rows[:1].nbytes if len(rows) else 0
        work = dist.all_to_all_single(result, rows, received, sent, group=self.group, async_op=True)
        self._work, self._kept = cast(dist.Work, work), (rows, result)
        return result

    def wait(self) -> Tensor:
        """The received rows."""
        assert self._work is not None and self._kept is not None  # was begun
        self._work.wait()
        _, result = self._kept
        self._work = self._kept = None
        return result


class _ExchangeContext(FunctionCtx):
    exchange: Exchange


class _Begin(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _ExchangeContext, rows: Tensor, exchange: Exchange) -> Tensor:
        ctx.exchange = exchange
        return exchange.begin(rows)

    @staticmethod
    def backward(ctx: _ExchangeContext, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.exchange.wait(), None


class _End(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _ExchangeContext, begun: Tensor, exchange: Exchange) -> Tensor:
        ctx.exchange = exchange
        exchange.wait()
        return begun.view_as(begun)

    @staticmethod
    def backward(ctx: _ExchangeContext, *gradients: Tensor) -> tuple[Tensor, None]:
        # started here, awaited by _Begin, so that the backward pass between them overlaps
        ctx.exchange.begin(gradients[0], is_backward=True)
        return gradients[0], None  # only its shape matters
