"""The data ranks' speeds during a training, by which samples are assigned. They are measured, so they are
stored in checkpoints and in the model's record, whose log replays the assignment.
"""

from collections.abc import Sequence

from atelier.engine.checkpoint.state import Nested
from atelier.engine.config.base import Json
from atelier.engine.loop.attachments import Attachment

EVERY = 10  # steps between measurements
AHEAD = 2  # steps until a measurement is used, because the next step's samples are already being read
WORTH = 0.005  # smaller changes of a speed do not change the assignment
LEAST = 0.01  # smallest speed
DIGITS = 4  # digits of a speed

Log = list[list[float]]  # [first step, speed of each data rank], in order of steps


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
            max(LEAST, round((was + speed) / 2, DIGITS)) if cost else was  # nothing measured
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


def _relative(speeds: Sequence[float]) -> list[float]:
    mean = sum(speeds) / len(speeds)
    return [speed / mean for speed in speeds]
