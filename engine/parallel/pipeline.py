"""Pipeline parallelism: blocks split over the pipeline axis, with the schedules of
torch.distributed.pipelining: 1F1B, interleaved (2104.04473), zero-bubble (2401.10241).

A stage is called as stage(*given, index=, work=): tensors from the previous stage (the first stage gets one
that it ignores), the micro-batch's number `index` as a tensor, and `work`, any object shared by all stages.
It returns a tensor or a tuple; the last stage a scalar.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn

from atelier.engine.config.parallel import Parallel
from atelier.engine.model.contract import Model
from atelier.engine.parallel.grid import Grid

if TYPE_CHECKING:
    from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle

Schedule: TypeAlias = "PipelineScheduleSingle | PipelineScheduleMulti"


def stage_numbers(grid: Grid, layout: Parallel) -> list[int]:
    """The stages of this rank: every `pipeline`-th stage from its own index on."""
    if grid.last_only or grid.pipeline == 1:
        return [0]
    return list(range(grid.places["pipeline"], layout.num_stages, grid.pipeline))


def keep_stage(model: Model, blocks: range, *, is_first: bool, is_last: bool) -> None:
    """Remove modules that the stage does not need from the plain model; names stay."""
    parts = model.parts()
    kept = {"blocks"} | set(parts["enter"] if is_first else ()) | set(parts["leave"] if is_last else ())
    for name, _ in list(model.named_children()):
        if name not in kept:
            delattr(model, name)
    for name in [name for name, _ in model.blocks.named_children() if int(name) not in blocks]:
        del model.blocks._modules[name]


def tied_names(model: Model) -> set[str]:
    """Children that both the first and the last stage have; their gradients are summed."""
    parts = model.parts()
    return set(parts["enter"]) & set(parts["leave"])


class Pipeline:
    """The stages of this rank and the schedule of micro-batches through all stages."""

    def __init__(
        self,
        stages: Sequence[nn.Module],
        numbers: Sequence[int],
        *,
        grid: Grid,
        layout: Parallel,
    ) -> None:
        self.stages, self.numbers, self.grid, self.layout = list(stages), list(numbers), grid, layout
        group = grid.pipeline_group
        assert group is not None  # created only with a pipeline axis
        self.group = group
        # NCCL: the first call in a group needs all its ranks
        dist.all_reduce(torch.zeros(1, device=grid.gang.device), group=group)
        self._plans: dict[tuple[int, tuple[torch.Size, ...]], Schedule] = {}
        self._after: Callable[[int, Tensor], Tensor] | None = None

    def train(
        self,
        work: Any,
        *,
        num_micro: int,
        between: tuple[Tensor, ...],
        after: Callable[[int, Tensor], Tensor],
    ) -> None:
        """Forward and backward of all micro-batches; `between`: the tensors between stages, as meta tensors.
        On the last stage `after(index, output)` returns the tensor from which the backward pass starts.
        """
        key = (num_micro, tuple(one.shape for one in between))
        if key not in self._plans:
            self._plans[key] = self._plan(num_micro, between)
        self._after = after
        indices = torch.arange(num_micro, device=self.grid.gang.device)
        given = (indices,) if 0 in self.numbers else ()
        self._plans[key].step(
            *given, target=indices, losses=[], return_outputs=False, index=indices, work=work
        )

    def _plan(self, num_micro: int, between: tuple[Tensor, ...]) -> Schedule:
        from torch.distributed.pipelining import (  # imports torch's compiler: two seconds
            PipelineStage,
            Schedule1F1B,
            ScheduleInterleaved1F1B,
            ScheduleInterleavedZeroBubble,
        )

        last = self.layout.num_stages - 1
        device = self.grid.gang.device
        scalar = torch.empty((), dtype=between[0].dtype, device="meta", requires_grad=True)
        made = [
            PipelineStage(
                stage,
                number,
                last + 1,
                device,
                input_args=(torch.empty(1, dtype=torch.long, device="meta"),) if number == 0 else between,
                output_args=(scalar,) if number == last else between,
                group=self.group,
            )
            for stage, number in zip(self.stages, self.numbers, strict=True)
        ]
        begin = self._begin_backward
        if self.layout.schedule == "1f1b":
            return Schedule1F1B(made[0], num_micro, loss_fn=begin, scale_grads=False)
        multi = {"interleaved": ScheduleInterleaved1F1B, "zb": ScheduleInterleavedZeroBubble}
        return multi[self.layout.schedule](made, num_micro, loss_fn=begin, scale_grads=False)

    def _begin_backward(self, output: Tensor, index: Tensor) -> Tensor:
        assert self._after is not None  # set by train
        return self._after(int(index), output)

    def infer(
        self,
        work: Any,
        *,
        num_micro: int,
        between: tuple[Tensor, ...],
        after: Callable[[int, Tensor], Tensor | None],
    ) -> None:
        """Forward of all micro-batches, stage by stage; the last stage calls `after(index, output)` and
        ignores its result. In every tick each rank computes at most one micro-batch of one stage, then sends
        and receives in one call: with NCCL, single sends between two ranks wait for each other.
        """
        device, last = self.grid.gang.device, self.layout.num_stages - 1
        rank, ranks = self.grid.places["pipeline"], self.grid.pipeline
        before, behind = (rank - 1) % ranks, (rank + 1) % ranks
        indices = torch.arange(num_micro, device=device)
        stages = dict(zip(self.numbers, self.stages, strict=True))
        received: dict[tuple[int, int], list[Tensor]] = {}
        for tick in range(last // ranks * max(num_micro, ranks) + last % ranks + num_micro):
            operations: list[dist.P2POp] = []
            if (mine := self._due(rank, tick, num_micro)) is not None:
                number, index = mine
                given = received.pop(mine, None) or _empty(between, device)
                output = stages[number](*given, index=indices[index], work=work)
                if number == last:
                    after(index, output)
                else:
                    parts = (output,) if isinstance(output, Tensor) else output
                    operations += [self._operation(dist.isend, x.contiguous(), behind) for x in parts]
            theirs = self._due(before, tick, num_micro)
            if theirs is not None and theirs[0] < last:
                given = received[theirs[0] + 1, theirs[1]] = _empty(between, device)
                operations += [self._operation(dist.irecv, x, before) for x in given]
            exchange(operations)

    def _due(self, rank: int, tick: int, num_micro: int) -> tuple[int, int] | None:
        """The stage and micro-batch that a rank computes in a tick: its stages one after another, the next
        one not before the last rank has sent what it begins with.
        """
        ranks = self.grid.pipeline
        turn, index = divmod(tick - rank, max(num_micro, ranks))
        number = turn * ranks + rank
        return (
            (number, index) if turn >= 0 and index < num_micro and number < self.layout.num_stages else None
        )

    def _operation(self, act: Any, tensor: Tensor, peer: int) -> dist.P2POp:
        return dist.P2POp(act, tensor, group=self.group, group_peer=peer)


def _empty(like: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    return [torch.empty(one.shape, dtype=one.dtype, device=device) for one in like]


def exchange(operations: list[dist.P2POp]) -> None:
    """Send and receive in one call, in which the order does not matter."""
    for handle in dist.batch_isend_irecv(operations) if operations else ():
        handle.wait()


def add_up_tied(weights: dict[str, Tensor], names: set[str], grid: Grid) -> None:
    """Sum the gradients of weights that both the first and the last stage have; both get equal bits."""
    ends = (0, grid.pipeline - 1)
    if grid.places["pipeline"] not in ends or grid.pipeline == 1:
        return
    other = ends[1] if grid.places["pipeline"] == 0 else ends[0]
    tied = {
        name: gradient
        for name, gradient in sorted(weights.items())
        if name.split(".")[0] in names and gradient is not None
    }
    theirs = {name: torch.empty_like(gradient) for name, gradient in tied.items()}
    to = {"group": grid.pipeline_group, "group_peer": other}
    sent = [dist.P2POp(dist.isend, gradient.contiguous(), **to) for gradient in tied.values()]
    got = [dist.P2POp(dist.irecv, each, **to) for each in theirs.values()]
    exchange(sent + got)
    for name, gradient in tied.items():
        gradient.add_(theirs[name])  # the order of two summands does not matter
