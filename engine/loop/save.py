"""Save checkpoints of a gang's roles in the background, and keep the newest, every n-th, the best and those
at branch points. A failed save is a warning; it is an error only if no earlier checkpoint is left.
"""

import time
from collections.abc import Iterable

from atelier.engine.checkpoint.folder import address, looks_whole, retain, steps
from atelier.engine.checkpoint.manifest import read_manifest
from atelier.engine.checkpoint.reader import load
from atelier.engine.checkpoint.state import nested
from atelier.engine.checkpoint.writer import Pending, save_async
from atelier.engine.config.direction import HELD_OUT_LOSS, OF_CURVES, sign_of
from atelier.engine.config.error import AtelierError, ConfigError
from atelier.engine.config.run_file import SegmentAddress
from atelier.engine.config.train import Train
from atelier.engine.io.storage import join, names, remove, write_bytes
from atelier.engine.loop.report import MetricLog, ProgressReport
from atelier.engine.loop.resume import checkpoints
from atelier.engine.loop.role_state import RoleState
from atelier.engine.parallel.gang import Gang, return_freed_memory

KEPT = "kept"  # <trajectory>/kept/<step>: kept always: branch points, multiples of train.keep_every
BEST = "best"  # <trajectory>/best/<step>: kept until better ones replace it


class Retention:
    """The retention rule of one training. Rank 0 applies it to a trajectory after each checkpoint."""

    def __init__(self, train: Train, protected: set[int]) -> None:
        self._keep, self._every, self._num_best = train.keep, train.keep_every, train.keep_best
        self._protected = protected
        self._losses: dict[str, float | None] = {}  # by URL, so a manifest is read once

    def apply(self, segment: SegmentAddress) -> list[int]:
        """Mark the checkpoints to keep, then remove the rest; returns the removed steps. After an OSError too
        many may be left.
        """
        found, marked = steps(checkpoints(segment)), marks(segment, KEPT)
        for step in found:
            if self._is_for_good(step) and step not in marked:
                write_bytes(join(segment.url, KEPT, str(step)), b"")
        if self._num_best:
            self._mark_best(segment, found)
        return retain(checkpoints(segment), max(1, self._keep), self._protected | stays(segment))

    def _is_for_good(self, step: int) -> bool:
        return bool(self._every and step % self._every == 0) or bool(self._keep and step in self._protected)

    def _mark_best(self, segment: SegmentAddress, found: list[int]) -> None:
        """Move the markers to the checkpoints with the best held-out loss, new ones first: a kill in between
        leaves one too many.
        """
        losses = {step: self._loss(address(checkpoints(segment), step), step) for step in found}
        sign = sign_of(OF_CURVES[HELD_OUT_LOSS])
        ranked = sorted((sign * loss, step) for step, loss in losses.items() if loss is not None)
        best, marked = {step for _, step in ranked[: self._num_best]}, marks(segment, BEST)
        for step in sorted(best - marked):
            write_bytes(join(segment.url, BEST, str(step)), b"")
        for step in sorted(marked - best):
            remove(join(segment.url, BEST, str(step)))

    def _loss(self, url: str, step: int) -> float | None:
        """The held-out loss of exactly these weights; None if it was not measured or a file is incomplete."""
        if url not in self._losses:
            self._losses[url] = held_out_loss(url, step) if looks_whole(url, step) else None
        return self._losses[url]


def held_out_loss(url: str, step: int) -> float | None:
    """The held-out loss that the checkpoint at `url` records for its own step, or None; reads no tensor."""
    last = nested(read_manifest(url, step=step).values).get("last", {})
    return last.get(HELD_OUT_LOSS) if last.get("eval/step") == step else None


def marks(segment: SegmentAddress, folder: str) -> set[int]:
    return {int(name) for name in names(join(segment.url, folder)) if name.isdigit()}


def stays(segment: SegmentAddress) -> set[int]:
    """The steps that a training marked to keep, also after the model is finished."""
    return marks(segment, KEPT) | marks(segment, BEST)


class Saver:
    """Saves checkpoints and applies retention, one set of saves at a time."""

    def __init__(
        self, *, retention: Retention, curves: dict[str, MetricLog], gang: Gang, report: ProgressReport
    ) -> None:
        self._retention, self._curves = retention, curves
        self._gang, self._report = gang, report
        self._pending: list[tuple[RoleState, SegmentAddress, int, Pending]] = []
        self._unsealed: Exception | None = None

    def save(self, members: list[RoleState], step: int) -> float:
        """Start saving `members`, given students first, and commit them in this order. Returns the seconds
        that training was blocked.

        Their metric lines are sealed first: a checkpoint never exists without the metrics before it.
        """
        began = time.perf_counter()
        self.settle()
        unsealed = self._gang.from_first(self._seal(members))
        if unsealed:
            self._unsealed = OSError(unsealed)
            self._report.say(warning=f"checkpoint of step {step} failed: {unsealed}")
            return time.perf_counter() - began
        return_freed_memory()  # otherwise the copies add to a step's memory
        for member in members:
            segment = member.segment(step)
            place = address(checkpoints(segment), step)
            pending = save_async(
                place,
                member.state(),
                step=step,
                trajectory=segment.fingerprint,
                gang=self._gang.aside,
                spill=member.spill,
                **(member.computed_by.of_checkpoint | {"held_out": member.held_out}),
            )
            self._pending.append((member, segment, step, pending))
            member.stored_step = step
        return time.perf_counter() - began

    def _seal(self, members: list[RoleState]) -> str:
        """Seal the metric lines so far; returns the error text, '' on success."""
        try:
            for member in members:
                self._curves[member.name].flush()
        except Exception as error:  # errors differ by kind of store
            return str(error)
        return ""

    def settle(self, *, is_last: bool = False) -> None:
        """Wait for saves under way. A failed save is a warning.

        Raises AtelierError if it was the last one or no earlier checkpoint exists.
        """
        pending, self._pending = self._pending, []
        failure, self._unsealed = self._unsealed, None
        for member, segment, step, save in pending:
            try:
                save.wait()
            except ConfigError:
                raise
            except Exception as error:  # errors differ by kind of store; equal on all ranks
                failure = error
                self._report.say(warning=f"checkpoint {member.name} step {step} failed: {error}")
                continue
            member.durable_steps = (member.durable_steps[1], step)
            if self._gang.is_first:
                self._retain(segment)
        if failure is not None and (is_last or not self._has_earlier(pending)):
            raise AtelierError(
                f"no checkpoint could be written: {failure}; make room or another store, then run again"
            )

    def restore(self, member: RoleState, step: int) -> None:
        """Load the checkpoint of `step` into `member`."""
        segment = member.segment(step)
        state = member.state()
        place = address(checkpoints(segment), step)
        values = load(place, state, step=step, trajectory=segment.fingerprint, gang=self._gang.aside)
        manifest = read_manifest(place, step=step)
        begun, trains = step > member.start, step < member.end
        if other := member.computed_by.go_on_from(manifest, member.name, begun=begun, trains=trains):
            self._report.say(warning=other)
        member.restore(values, step)
        member.held_out = manifest.held_out

    def _retain(self, segment: SegmentAddress) -> None:
        """Apply retention. A store error is only a warning: the checkpoint exists and the next save
        retries.
        """
        try:
            self._retention.apply(segment)
        except Exception as error:  # errors differ by kind of store
            self._report.say(warning=f"older checkpoints of {segment.url} stay: {error}")

    def _has_earlier(self, pending: list[tuple[RoleState, SegmentAddress, int, Pending]]) -> bool:
        """Whether every role has an earlier checkpoint in its trajectories; rank 0 checks for all. A store
        without answer counts as yes: the outage may be short, and the next save checks again.
        """
        found = False
        if self._gang.is_first:
            try:
                found = all(
                    any(number < step for part in member.spec.segments for number in steps(checkpoints(part)))
                    for member, _, step, _ in pending
                )
            except OSError:
                found = True
        return self._gang.from_first(found)


def forget(segments: Iterable[SegmentAddress], gang: Gang) -> None:
    """Remove the checkpoints of finished roles' segments, except those marked to keep."""
    if not gang.is_first:
        return
    for segment in segments:
        for step in set(steps(checkpoints(segment))) - stays(segment):
            remove(address(checkpoints(segment), step))
