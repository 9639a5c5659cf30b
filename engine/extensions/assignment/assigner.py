"""Assign a step's samples to data ranks by cost: elastic training of workloads whose rows differ in cost
(SE-MoE, 2205.10034, elastic MoE training: heavy tasks get more devices, light ones share one). Sums are over
the global batch, so the result does not depend on the assignment.

A step's samples are ordered by kind, costliest first; each rank takes a run of them whose cost is
proportional to its speed. So a rank has few kinds of rows, and a micro-batch usually one.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from atelier.engine.data.blend import Blend, trimmed
from atelier.engine.extensions.assignment.pace import Pace
from atelier.engine.parallel.grid import Grid

KEPT = 3  # steps: the last, the current and the prefetched one
LEAST = 1024  # tokens: fewer join another pass if it has room
UNIT = 16  # micro-batches are padded to a multiple of this many tokens, for few shapes


@dataclass(frozen=True)
class Workload:
    """Rows of one kind: tokens and cost of each (in one unit, such as FLOPs), and the most rows per
    micro-batch.
    """

    tokens: int
    cost: float
    most: int


def ends(costs: np.ndarray, speeds: Sequence[float]) -> list[int]:
    """The end of each rank's run on a line of rows with these costs, to the nearest row; each rank has a row
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
    """For each rank its micro-batches, as indices into `kinds`, the workload of each sample of a step.
    Largest first; all ranks have equally many, the last possibly empty. A micro-batch has one kind, unless a
    shorter kind's rows have fewer than `least` tokens and room beside longer ones.
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
    """Assigns samples to ranks. `cost_of`: FLOPs of a row of `tokens`, over all roles."""

    def __init__(self, grid: Grid, pace: Pace, cost_of: Callable[[int], float]) -> None:
        self._grid, self._pace, self._cost_of = grid, pace, cost_of
        self._unit = UNIT * grid.axes.row_unit
        self._blend: tuple[Blend, int] | None = None
        self._workloads: list[Workload] = []
        self._kinds = np.array([], dtype=np.int64)  # workload of each data set
        self._costs: dict[int, list[float]] = {}  # costs of each rank, by step

    def batches(
        self, blend: Blend, places: np.ndarray, size: int, step: int
    ) -> Iterator[dict[str, np.ndarray]]:
        """This rank's micro-batches of the samples at `places`. `size`: rows per micro-batch of the longest
        rows; shorter rows have as many tokens per micro-batch.
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
        """The cost of each rank's samples in a step, known for the last three steps that were read."""
        return self._costs[step]

    def _learn(self, blend: Blend, size: int) -> None:
        """Find the workloads: data sets with rows of equal cost are one."""
        room = size * sum(blend.lengths)
        found: dict[Workload, int] = {}
        kinds = []
        for number in range(blend.num_sets):
            tokens = min(blend.length, -(-blend.tokens(number) // self._unit) * self._unit)
            most = max(1, room // blend.row_length(number))
            workload = Workload(tokens, self._cost_of(tokens), most)
            kinds.append(found.setdefault(workload, len(found)))
        self._workloads, self._kinds = list(found), np.array(kinds)
