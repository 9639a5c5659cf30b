"""Gives a data rank its samples of each step, by what they cost (workload.py)."""

from collections.abc import Callable, Iterator

import numpy as np

from atelier.engine.data.blend import Blend, trimmed
from atelier.engine.extensions.assignment.pace import Pace
from atelier.engine.extensions.assignment.workload import Workload, assign, costs_of
from atelier.engine.parallel.grid import Grid

KEPT = 3  # steps: that which has ended, that which is computed, that which is read ahead
LEAST = 1024  # tokens: fewer are not worth a pass of their own, if there is room for them in another
UNIT = 16  # a micro-batch is padded to a multiple of so many tokens: its shapes are few


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
        """What the samples of a step cost each rank; of the last three that were read."""
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
