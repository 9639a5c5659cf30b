"""Gives a data rank its samples of each step, by what they cost (engine/plan/assignment.py)."""

from collections.abc import Callable, Iterator

import numpy as np

from atelier.engine.data.blend import Blend, trimmed
from atelier.engine.loop.pace import Pace
from atelier.engine.parallel.grid import Grid
from atelier.engine.plan.assignment import Workload, costs_of, micro_batches

KEPT = 3  # steps: that which has ended, that which is computed, that which is read ahead
UNIT = 16  # a micro-batch is padded to a multiple of so many tokens: its shapes are few


class Assigner:
    """`cost_of`: FLOPs of a row of so many tokens, of all roles."""

    def __init__(self, grid: Grid, pace: Pace, cost_of: Callable[[int], float]) -> None:
        self._grid, self._pace, self._cost_of = grid, pace, cost_of
        axes = grid.axes
        self._unit = UNIT * axes.tensor * (2 * axes.context if axes.context > 1 else 1)
        self._workloads: dict[tuple[Blend, int], list[Workload]] = {}
        self._costs: dict[int, list[float]] = {}  # of each rank, by step

    def batches(
        self, blend: Blend, places: np.ndarray, size: int, step: int
    ) -> Iterator[dict[str, np.ndarray]]:
        """This rank's micro-batches of the samples at `places`. `size`: rows of a micro-batch of the longest
        rows; of shorter ones it has as many tokens.
        """
        sets, workloads = blend.sets(places), self._known(blend, size)
        every = micro_batches(sets, workloads, self._pace.at(step))
        self._costs = {step: costs_of(every, sets, workloads)} | dict(list(self._costs.items())[: KEPT - 1])
        for rows in every[self._grid.data_index]:
            batch = trimmed(blend.rows(places[rows]) if len(rows) else blend.padding(), self._unit)
            yield batch | {"samples_B": places[rows] if len(rows) else np.array([0])}

    def costs(self, step: int) -> list[float]:
        """What the samples of a step cost each rank; of the last three that were read."""
        return self._costs[step]

    def _known(self, blend: Blend, size: int) -> list[Workload]:
        if (blend, size) not in self._workloads:
            found = [
                min(blend.length, -(-blend.tokens(number) // self._unit) * self._unit)
                for number in range(blend.num_sets)
            ]
            self._workloads = {
                (blend, size): [
                    Workload(self._cost_of(tokens), max(1, size * blend.length // tokens)) for tokens in found
                ]
            }
        return self._workloads[blend, size]
