"""A plain model, or one stage of it, together with what is computed from its hidden states, so that sharding
sees one root.

B rows, T tokens, D hidden, V vocab
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor, nn

from engine.objective.chunked import Mix, TeacherSide, objective_sums
from engine.objective.vocabulary import Slice
from engine.parallel.compute import Precision, arithmetic
from engine.parallel.grid import Grid
from engine.parallel.tensor import gathered, own_between
from engine.placement import local


class Forward(NamedTuple):
    total: Tensor  # scalar: sum over scored tokens of the mixed objectives
    sums: dict[str, Tensor]  # scalars: plain sums by objective, always with "lm"
    hidden_BTD: Tensor  # detached
    head_weight_VD: Tensor  # detached


@dataclass
class Work:
    """The micro-batches of a step (this rank's tokens of each), what is optimised, and what came out."""

    batches: list[dict[str, Tensor]]
    mix: Mix
    sides: dict[int, TeacherSide] = field(default_factory=dict)
    results: dict[int, Forward] = field(default_factory=dict)


class Learner(nn.Module):
    """forward -> the summed objectives inside the root's forward, since only there is a sharded head whole;
    of a stage that is not the last, what travels on.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        grid: Grid,
        precision: Precision,
        is_compiled: bool = False,
        sequence_parallel: bool = False,
        is_split: bool = False,
        is_first: bool = True,
        is_last: bool = True,
    ) -> None:
        super().__init__()
        self.model, self.is_compiled, self.grid = model, is_compiled, grid
        self.precision: Precision = precision
        self.sequence_parallel, self.is_split = sequence_parallel, is_split
        self.is_first, self.is_last = is_first, is_last

    def forward(self, x: Tensor | None, *, index: Tensor | int, work: Work) -> Tensor:
        self.grid.gang.pulse.at("forward")
        with arithmetic(self.precision, self.grid.gang.device):  # forward alone: torch asks for it
            return self._forward(x, int(index), work)

    def _forward(self, x: Tensor | None, number: int, work: Work) -> Tensor:
        batch = own_between(work.batches[number], self.grid, sequence_parallel=self.sequence_parallel)
        model: Any = self.model
        if self.is_first and self.is_last:
            hidden_BTD = model(batch).hidden
        else:  # a stage: the forward pass in pieces
            shared = model.shared(batch)
            x_BTD = model.through(model.enter(batch) if self.is_first else x, shared)
            if not self.is_last:
                return x_BTD
            hidden_BTD = model.leave(x_BTD, shared).hidden
        hidden_BTD = gathered(hidden_BTD, self.grid, sequence_parallel=self.sequence_parallel)
        head_weight_VD = local(model.head_weight)
        total, sums = objective_sums(
            hidden_BTD,
            head_weight_VD,
            batch["labels_BT"],
            work.mix,
            work.sides.get(number),
            compiled=self.is_compiled,
            part=self._slice(head_weight_VD),
            is_split=self.is_split,
        )
        work.results[number] = Forward(total, sums, hidden_BTD.detach(), head_weight_VD.detach())
        return total

    def _slice(self, head_weight_VD: Tensor) -> Slice | None:
        group = self.grid.group("tensor")
        if group is None:
            return None
        size = head_weight_VD.shape[0]
        return Slice(group, self.grid.places["tensor"] * size, size)
