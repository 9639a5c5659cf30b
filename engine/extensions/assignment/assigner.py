"""Which samples of a step each data rank takes, by what they cost: elastic training of workloads whose rows
cost differently (SE-MoE, 2205.10034, elastic MoE training: heavy tasks get more devices, light ones share
one). Sums are over the global batch, so any assignment means the same.

A step's samples lie on a line, those of the costliest kind first; every rank takes a run of them, of a
cost in proportion to its speed. So a rank has few kinds of rows, and a micro-batch one, as a rule.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from atelier.engine.data.blend import Blend, trimmed
from atelier.engine.extensions.assignment.pace import Pace
from atelier.engine.parallel.grid import Grid

KEPT = 3  # steps: that which has ended, that which is computed, that which is read ahead
LEAST = 1024  # tokens: fewer are not worth a pass of their own, if there is room for them in another
UNIT = 16  # a micro-batch is padded to a multiple of so many tokens: its shapes are few


@dataclass(frozen=True)
class Workload:
    """Rows of one kind: tokens and cost of each (in one unit, say FLOPs), how many a micro-batch has at
    most.
    """

    tokens: int
    cost: float
    most: int


def ends(costs: np.ndarray, speeds: Sequence[float]) -> list[int]:
    """Where the run of each rank ends on a line of rows with these costs, to the nearest row; each has a row
    if there are enough.
    """
    wanted = np.cumsum(speeds) / sum(speeds) * costs.sum()
    nearest = np.searchsorted(np.cumsum(costs) - costs / 2, wanted).tolist()
    number, least = len(speeds), int(len(costs) >= len(speeds))
    found: list[int] = []
    for rank, end in enumerate(nearest[:-1]):
        before = found[-1] if found else 0
        found.append(min(max(end, before + least), len(costs) - least * (number - 1 - rank)))
    return [*found, len(costs)]


def assign(
    kinds: np.ndarray, workloads: Sequence[Workload], speeds: Sequence[float], *, least: int = 0
) -> list[list[np.ndarray]]:
    """For each rank its micro-batches, by the indices of their rows in `kinds`, the workload of each sample
    of a step. The largest first; every rank has equally many, of which the last may be empty. Of one kind,
    unless the rows of a shorter one have fewer than `least` tokens and room beside longer ones.
    """
    costs = np.array([workload.cost for workload in workloads])[kinds]
    line = np.lexsort((np.arange(len(kinds)), kinds, -costs))
    found = []
    for run in np.split(line, ends(costs[line], speeds)[:-1]):
        mine: list[np.ndarray] = []
        for number in dict.fromkeys(kinds[run].tolist()):
            rows = run[kinds[run] == number]
            has_few = len(rows) * workloads[number].tokens < least
            if mine and has_few and len(mine[-1]) + len(rows) <= workloads[int(kinds[mine[-1][0]])].most:
                mine[-1] = np.concatenate([mine[-1], rows])
            else:
                mine += np.array_split(rows, -(-len(rows) // workloads[number].most))
        found.append(sorted(mine, key=lambda rows: -len(rows) * costs[rows].max()))
    most = max(map(len, found))
    nothing = np.array([], dtype=np.int64)
    return [mine + [nothing] * (most - len(mine)) for mine in found]


def costs_of(
    batches: Sequence[Sequence[np.ndarray]], kinds: np.ndarray, workloads: Sequence[Workload]
) -> list[float]:
    """The cost of each rank's micro-batches, whose rows are padded to the longest."""
    every = np.array([workload.cost for workload in workloads])
    return [
        sum(len(rows) * float(every[kinds[rows]].max()) for rows in mine if len(rows)) for mine in batches
    ]


class Assigner:
    """`cost_of`: FLOPs of a row of so many tokens, of all roles."""

    def __init__(self, grid: Grid, pace: Pace, cost_of: Callable[[int], float]) -> None:
        self._grid, self._pace, self._cost_of = grid, pace, cost_of
        self._unit = UNIT * grid.axes.row_unit
        self._blend: tuple[Blend, int] | None = None
        self._workloads: list[Workload] = []
        self._kinds = np.array([], dtype=np.int64)  # the workload of each data set
        self._costs: dict[int, list[float]] = {}  # of each rank, by step

    def batches(
        self, blend: Blend, places: np.ndarray, size: int, step: int
    ) -> Iterator[dict[str, np.ndarray]]:
        """This rank's micro-batches of the samples at `places`. `size`: rows of a micro-batch of the longest
        rows; of shorter ones it has as many tokens.
        """
        if self._blend != (blend, size):
            self._blend = blend, size
            self._learn(blend, size)
        kinds = self._kinds[blend.sets(places)]
        every = assign(kinds, self._workloads, self._pace.at(step), least=LEAST)
        self._costs = {step: costs_of(every, kinds, self._workloads)} | {
            other: costs for other, costs in self._costs.items() if step - KEPT < other < step
        }
        for rows in every[self._grid.data_index]:
            batch = trimmed(blend.rows(places[rows]) if len(rows) else blend.padding(), self._unit)
            yield batch | {"samples_B": places[rows] if len(rows) else np.array([0])}

    def costs(self, step: int) -> list[float]:
        """The cost of each rank's samples in a step. Known for the last three steps that were read."""
        return self._costs[step]

    def _learn(self, blend: Blend, size: int) -> None:
        """Find the workloads: data sets whose rows cost alike are one."""
        room = size * sum(blend.lengths)
        found: dict[Workload, int] = {}
        kinds = []
        for number in range(blend.num_sets):
            tokens = min(blend.length, -(-blend.tokens(number) // self._unit) * self._unit)
            most = max(1, room // blend.row_length(number))
            workload = Workload(tokens, self._cost_of(tokens), most)
            kinds.append(found.setdefault(workload, len(found)))
        self._workloads, self._kinds = list(found), np.array(kinds)
