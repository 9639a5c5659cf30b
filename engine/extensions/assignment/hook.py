"""Give each data rank its samples of a step by their cost and the ranks' speeds: elastic training of
workloads whose rows differ in cost (SE-MoE, 2205.10034, elastic MoE training: heavy tasks get more devices,
light ones share one). Sums are over the global batch, so the result does not depend on the assignment.

A step's samples are ordered by kind, costliest first; each rank takes a run of them whose cost is
proportional to its speed. So a rank has few kinds of rows, and a micro-batch usually one. The speeds are
measured, so they are stored in checkpoints and in the model's record, whose log replays the assignment.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from atelier.engine.checkpoint.state import Nested
from atelier.engine.config.base import Json
from atelier.engine.config.error import ConfigError
from atelier.engine.data.blend import Blend, trimmed
from atelier.engine.extensions.assignment.checks import PLACE, refuse_measuring
from atelier.engine.extensions.assignment.config.parallel.assignment import Assignment
from atelier.engine.extensions.assignment.config.parallel.speed_log import SpeedLog
from atelier.engine.loop.attachments import Attachment
from atelier.engine.loop.hooks import Hook, HookContext
from atelier.engine.loop.role_state import RoleState
from atelier.engine.parallel.grid import Grid

KEPT = 3  # steps: the last, the current and the prefetched one
LEAST = 1024  # tokens: fewer join another pass if it has room
UNIT = 16  # micro-batches are padded to a multiple of this many tokens, for few shapes
EVERY = 10  # steps between measurements
AHEAD = 2  # steps until a measurement is used, because the next step's samples are already being read
WORTH = 0.005  # smaller changes of a speed do not change the assignment
SLOWEST = 0.01  # smallest speed
DIGITS = 4  # digits of a speed

Log = list[list[float]]  # [first step, speed of each data rank], in order of steps


class SamplesByCost(Hook):
    """The data ranks' samples and speeds."""

    def __init__(self, context: HookContext) -> None:
        super().__init__(context)
        layout = context.build.layout
        assigned, log = Assignment.of(layout), SpeedLog.of(layout)
        is_measured = assigned is not None and assigned.value == "measured"
        if is_measured:
            _check_measured(context)
        self._num_data, self._gang, self._last = layout.axes.data, context.gang, -2
        self._pace = Pace(log.value if log else (), self._num_data, is_measured=is_measured)
        grid = context.build.grid("", is_student=False)
        self._assigner = Assigner(grid, self._pace, lambda tokens: row_flops(context.members, tokens))
        context.data.batches_of_step = self._assigner.batches
        for member in context.members.values():
            member.attach(self._pace)

    def timed(self, clock: int, times_us: Sequence[int]) -> None:
        """Pass the times on to the pace."""
        before, self._last = self._last, clock
        if before != clock - 1:
            return
        each = self._gang.world // self._num_data
        times = [max(times_us[rank * each : (rank + 1) * each]) / 1e6 for rank in range(self._num_data)]
        self._pace.hear(clock, self._assigner.costs(clock - 1), times)


def _check_measured(context: HookContext) -> None:
    """Raise ConfigError if the ranks' speeds cannot be measured, or if the steps must be repeated bit for
    bit, as in a replay.
    """
    for name, member in context.training.members.items():
        if member.mode == "replay":
            raise ConfigError(
                PLACE,
                f"measured, but {name} is replayed and must give the same bits",
                "use assignment=static and the parallel.speed_log in its record",
            )
    if context.gang.device.type == "cuda":
        refuse_measuring()


def row_flops(members: Mapping[str, RoleState], tokens: int) -> float:
    """FLOPs of a row of `tokens`, over all roles."""
    return tokens * math.fsum(member.flops_per_token(tokens) for member in members.values())


class Pace(Attachment):
    """Speeds by step, relative to their mean: as given, and after that, if `is_measured`, from the ranks'
    times. All roles of a gang share one.
    """

    name = "pace"

    def __init__(self, given: Sequence[Sequence[float]], num_ranks: int, *, is_measured: bool) -> None:
        self.num_ranks, self.is_measured = num_ranks, is_measured
        self._log: Log = [list(entry) for entry in given] or [[0, *self._alike]]
        self._restored = -1  # step of the checkpoint whose log is continued
        self._forget()

    def _forget(self) -> None:
        self._costs, self._times, self._num_heard = [0.0] * self.num_ranks, [0.0] * self.num_ranks, 0

    @property
    def _alike(self) -> list[float]:
        return [1.0] * self.num_ranks

    def at(self, step: int) -> list[float]:
        """The speeds at a step, relative to their mean; equal before the first entry."""
        found = [entry[1:] for entry in self._log if entry[0] <= step]
        return _relative(found[-1] if found else self._alike)

    def hear(self, step: int, costs: Sequence[float], times: Sequence[float]) -> None:
        """Take the costs and times of ranks before `step`. Every tenth time they set the speeds from `step` +
        2 on, moved by half to damp noise. Steps already in the log are not measured again.
        """
        if not self.is_measured or not all(times) or step + AHEAD <= self._log[-1][0]:
            return
        self._costs = [before + cost for before, cost in zip(self._costs, costs, strict=True)]
        self._times = [before + time for before, time in zip(self._times, times, strict=True)]
        self._num_heard += 1
        if self._num_heard < EVERY:
            return
        now = self.at(step + AHEAD)
        found = _relative([cost / time for cost, time in zip(self._costs, self._times, strict=True)])
        new = [
            max(SLOWEST, round((was + speed) / 2, DIGITS)) if cost else was  # nothing measured
            for was, speed, cost in zip(now, found, self._costs, strict=True)
        ]
        if max(abs(speed - was) for speed, was in zip(new, now, strict=True)) > WORTH:
            self._log.append([step + AHEAD, *new])
        self._forget()

    def state(self) -> Log:
        """The log, for a checkpoint or record."""
        return [list(entry) for entry in self._log]

    def summary(self, steps: int) -> dict[str, Json]:
        return {"speed_log": self.state()}

    def restore(self, state: Nested | Log, step: int) -> None:
        """Continue the log of a role's checkpoint of `step`; among several roles that of the most advanced
        one, whose steps the others repeat. A log of another number of ranks is discarded.
        """
        if step < self._restored:
            return
        self._restored = step
        known = [list(entry) for entry in state]
        if any(len(entry) != 1 + self.num_ranks for entry in known):
            known = []
        if self.is_measured:
            known = [entry for entry in known if entry[0] < step + AHEAD]
            self._log = known or [[step, *self.at(step)]]
            return
        before, now = [entry for entry in known if entry[0] < step], [step, *self.at(step)]
        if before and _relative(before[-1][1:]) == now[1:]:
            now = []
        later = [entry for entry in self._log if entry[0] > step]
        self._log = [*before, *([now] if now else []), *later]


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


def _relative(speeds: Sequence[float]) -> list[float]:
    mean = sum(speeds) / len(speeds)
    return [speed / mean for speed in speeds]
