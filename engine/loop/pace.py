"""The speeds of the data ranks over a training, by which its samples are assigned. They are measured, so they
are kept: in checkpoints, and in the record of a model, whose log replays the assignment.
"""

from collections.abc import Sequence

EVERY = 10  # steps between two measurements
AHEAD = 2  # steps until one is used: the next step's samples are being read when a step ends
WORTH = 0.005  # a smaller change of a speed is no reason to assign samples otherwise
DIGITS = 4  # of a speed

Log = list[list[float]]  # [step from which, speed of each data rank]


class Pace:
    """Speeds by step, relative to their mean. `is_measured`: from their steps' times; else as given."""

    def __init__(self, given: Sequence[Sequence[float]], num_ranks: int, *, is_measured: bool) -> None:
        self.is_measured = is_measured
        self._log: Log = [list(entry) for entry in given] or [[0, *[1.0] * num_ranks]]
        self._costs, self._times = [0.0] * num_ranks, [0.0] * num_ranks
        self._num_heard = 0

    def at(self, step: int) -> list[float]:
        """The speeds at a step, relative to their mean; before the first entry all are alike."""
        found = [entry[1:] for entry in self._log if entry[0] <= step]
        return _relative(found[-1] if found else [1.0] * len(self._costs))

    def hear(self, step: int, costs: Sequence[float], times: Sequence[float]) -> None:
        """Take what the ranks computed before `step`, and how long each took; every tenth time the speeds of
        the steps from `step` + 2 on follow, half of the way, which damps noise.
        """
        if not self.is_measured or not all(times):
            return
        self._costs = [before + cost for before, cost in zip(self._costs, costs, strict=True)]
        self._times = [before + time for before, time in zip(self._times, times, strict=True)]
        self._num_heard += 1
        if self._num_heard % EVERY:
            return
        now = self.at(step + AHEAD)
        found = _relative([cost / time for cost, time in zip(self._costs, self._times, strict=True)])
        new = [round((was + speed) / 2, DIGITS) for was, speed in zip(now, found, strict=True)]
        if max(abs(speed - was) for speed, was in zip(new, now, strict=True)) > WORTH:
            self._log.append([step + AHEAD, *new])
        self._costs, self._times = [0.0] * len(new), [0.0] * len(new)

    def state(self) -> Log:
        """The log, for a checkpoint or a record."""
        return [list(entry) for entry in self._log]

    def restore(self, log: Log, step: int) -> None:
        """Go on from the log of a checkpoint of `step`; the longest of several roles' logs is kept."""
        known = [list(entry) for entry in log if entry[0] < step + AHEAD]
        if self.is_measured and len(known) > len(self._log):
            self._log = known


def _relative(speeds: Sequence[float]) -> list[float]:
    mean = sum(speeds) / len(speeds)
    return [speed / mean for speed in speeds]
