"""Checkpoints of a gang's roles, written beside training; loud when one fails, fatal only when none is left
to fall back on.
"""

import time

from engine.checkpoint.folder import address, retain, steps
from engine.checkpoint.reader import load
from engine.checkpoint.writer import Pending, save_async
from engine.loop.member import Member
from engine.loop.report import Curve, Report
from engine.loop.resume import checkpoints
from engine.parallel.gang import Gang
from engine.spec.error import AtelierError, ConfigError
from engine.spec.run import Segment
from engine.storage import join, names, remove, write_bytes

KEPT = "kept"  # <trajectory>/kept/<step>: trainings branch off there, so retention leaves its checkpoint


class Saver:
    """`keep` newest checkpoints are retained besides the protected ones. One round of saves is under way at a
    time.
    """

    def __init__(
        self, *, keep: int, protected: set[int], curves: dict[str, Curve], gang: Gang, report: Report
    ) -> None:
        self._keep, self._protected, self._curves = keep, protected, curves
        self._gang, self._report = gang, report
        self._pending: list[tuple[Member, Segment, int, Pending]] = []
        self._unsealed: Exception | None = None

    def save(self, members: list[Member], step: int) -> float:
        """Begin saving `members`, given students first: they are committed in this order. Returns the seconds
        that training stood still.

        Their metric lines are sealed before: a checkpoint never exists without the curve that led to it.
        """
        began = time.perf_counter()
        self.settle()
        unsealed = self._gang.from_first(self._seal(members))
        if unsealed:
            self._unsealed = OSError(unsealed)
            self._report.say(warning=f"checkpoint of step {step} failed: {unsealed}")
            return time.perf_counter() - began
        for member in members:
            segment = member.segment(step)
            place = address(checkpoints(segment), step)
            pending = save_async(
                place, member.state(), step=step, trajectory=segment.fingerprint, gang=self._gang.aside
            )
            self._pending.append((member, segment, step, pending))
            member.stored_step = step
        return time.perf_counter() - began

    def _seal(self, members: list[Member]) -> str:
        """Seal the metric lines so far; what kept them from it, '' when nothing did."""
        try:
            for member in members:
                self._curves[member.name].flush()
        except OSError as error:
            return str(error)
        return ""

    def settle(self, *, is_last: bool = False) -> None:
        """Wait for what is under way. A failed save is told; it ends the training when it was the last one or
        none came before.
        """
        pending, self._pending = self._pending, []
        failure, self._unsealed = self._unsealed, None
        for member, segment, step, save in pending:
            try:
                save.wait()
            except (OSError, RuntimeError, AtelierError) as error:
                if isinstance(error, ConfigError):
                    raise
                failure = error
                self._report.say(warning=f"checkpoint {member.name} step {step} failed: {error}")
                continue
            if self._gang.is_first:
                self._retain(segment, step)
        if failure is not None and (is_last or not self._has_earlier(pending)):
            raise AtelierError(
                f"no checkpoint could be written: {failure}; make room or another store, then run again"
            )

    def restore(self, member: Member, step: int) -> None:
        """Put `member` where its checkpoint of `step` is."""
        segment = member.segment(step)
        state = member.state()
        place = address(checkpoints(segment), step)
        values = load(place, state, step=step, trajectory=segment.fingerprint, gang=self._gang.aside)
        member.restore(values, step)

    def _retain(self, segment: Segment, step: int) -> None:
        if step in self._protected and self._keep:
            write_bytes(join(segment.url, KEPT, str(step)), b"")
        retain(checkpoints(segment), max(1, self._keep), self._protected | kept_steps(segment))

    def _has_earlier(self, pending: list[tuple[Member, Segment, int, Pending]]) -> bool:
        """Whether every role has another checkpoint in its trajectories; rank 0 looks for all."""
        found = self._gang.is_first and all(
            any(number < step for part in member.spec.segments for number in steps(checkpoints(part)))
            for member, _, step, _ in pending
        )
        return self._gang.from_first(found)


def forget(members: list[Member], gang: Gang) -> None:
    """Remove the checkpoints of finished roles, but those that trainings with `keep` marked as their branch
    points.
    """
    if not gang.is_first:
        return
    for member in members:
        for segment in member.spec.segments if member.is_kept else ():
            for step in set(steps(checkpoints(segment))) - kept_steps(segment):
                remove(address(checkpoints(segment), step))


def kept_steps(segment: Segment) -> set[int]:
    """Steps that some training marked as a branch point of this trajectory."""
    return {int(name) for name in names(join(segment.url, KEPT)) if name.isdigit()}
