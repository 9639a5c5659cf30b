"""Which samples of a step each data rank takes, by what they cost: elastic training of workloads whose rows
cost differently (SE-MoE, 2205.10034, elastic MoE training: heavy tasks get more devices, light ones share
one). Pure functions; sums are over the global batch, so any assignment means the same. Torch-free.

A step's samples lie on a line, those of the costliest data set first; every rank takes a run of them, of a
cost in proportion to its speed. So a rank has few kinds of rows, and a micro-batch has one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Workload:
    """The rows of one data set: the cost of each (in one unit, say FLOPs), how many a micro-batch has at
    most.
    """

    cost: float
    most: int


def ends(costs: np.ndarray, speeds: Sequence[float]) -> list[int]:
    """Where the run of each rank ends on a line of rows with these costs, to the nearest row."""
    wanted = np.cumsum(speeds) / sum(speeds) * costs.sum()
    found = np.searchsorted(np.cumsum(costs) - costs / 2, wanted)
    return [*found[:-1].tolist(), len(costs)]


def micro_batches(
    sets: np.ndarray, workloads: Sequence[Workload], speeds: Sequence[float]
) -> list[list[np.ndarray]]:
    """For each rank its micro-batches, by the indices of their rows in `sets`, the data set of each sample of
    a step. The largest first; every rank has equally many, of which the last may be empty.
    """
    costs = np.array([workload.cost for workload in workloads])[sets]
    line = np.lexsort((np.arange(len(sets)), sets, -costs))
    found = []
    for run in np.split(line, ends(costs[line], speeds)[:-1]):
        mine = []
        for number in dict.fromkeys(sets[run].tolist()):
            rows = run[sets[run] == number]
            mine += np.array_split(rows, -(-len(rows) // workloads[number].most))
        found.append(sorted(mine, key=lambda rows: -costs[rows].sum()))
    most = max(map(len, found))
    nothing = np.array([], dtype=np.int64)
    return [mine + [nothing] * (most - len(mine)) for mine in found]


def costs_of(
    batches: Sequence[Sequence[np.ndarray]], sets: np.ndarray, workloads: Sequence[Workload]
) -> list[float]:
    """The cost of each rank's micro-batches."""
    return [sum(workloads[number].cost for rows in mine for number in sets[rows]) for mine in batches]


def idle_share(times: Sequence[float]) -> float:
    """The share of all ranks' time that passes in waiting for the slowest: 1 - mean / max."""
    return 1 - sum(times) / len(times) / max(times)
