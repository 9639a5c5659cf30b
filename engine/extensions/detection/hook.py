"""Train detectors: roles that learn which tokens a generator has replaced. Each is the root of its own step
after the generators' step: its rows are those of the generator's step `delay` before, with the generator's
drawn tokens. A detector's students read the same.
"""

from collections.abc import Mapping
from pathlib import Path

import torch

from atelier.engine.checkpoint.collective_call import all_or_none, nothing
from atelier.engine.config.objective.mlm import MLM
from atelier.engine.config.role import Role
from atelier.engine.config.run_file import Training
from atelier.engine.extensions.detection.drawn import Drawing, Drawn, opened_drawn
from atelier.engine.loop.counts import Counts
from atelier.engine.loop.hooks import Hook, HookContext, Learned
from atelier.engine.loop.prefetch import Batch, Prefetcher, StepData
from atelier.engine.loop.role_state import RoleState
from atelier.engine.loop.step import StepGroup, StepOutcome, step_group_at, train_step

LESSON = "drawings"


class DrawnInbox:
    """Receives tokens drawn by a generator at another site, for a detector here."""

    def __init__(self, training: Training, num_ids: int) -> None:
        self._train, self._num_ids = training.train, num_ids
        self.drawn: Drawn | None = None  # tokens of this step

    def open(self, path: Path, place: str, step: int) -> None:
        """As `Inbox`."""
        self.drawn = opened_drawn(path, place, num_ids=self._num_ids, step=step, train=self._train)


class Detectors(Hook):
    """A gang's detectors, and the generators here that they, or detectors at other sites, learn from."""

    def __init__(self, context: HookContext) -> None:
        training, members, gang = context.training, context.members, context.gang
        self._gang, self._open_feed = gang, context.data.open_feed
        self._feeds: dict[int, Prefetcher] = {}  # by delay
        end = training.train.num_steps
        self._asking: dict[str, list[range]] = {}  # by generator: the steps in which it draws
        self._drawings: dict[str, Drawing] = {}  # by generator
        for name, member in members.items():
            readers = _detectors(training, name)
            if not readers:
                continue
            self._asking[name] = [each.asked(end) for each in readers.values()]
            drawing = Drawing(
                training.train,
                member.role.seed_name or name,
                gang,
                member.grid,
                parts=member.parts_of(MLM.reads),
                num_ids=member.role.model.ids,
                keep=max((each.delay for key, each in readers.items() if key in members), default=0),
            )
            self._drawings[name] = drawing
            member.attach(drawing)
        self._inboxes: dict[str, DrawnInbox] = {}
        for name, member in members.items():
            if member.role.lesson == LESSON and member.role.teacher not in members:
                self._inboxes[name] = inbox = DrawnInbox(training, member.role.model.ids)
                member.inboxes[LESSON] = inbox
        self._trees = {
            name: _below(members, name) for name, each in members.items() if each.role.lesson == LESSON
        }
        self.roles = frozenset(name for tree in self._trees.values() for name in tree)

    def begin(self, clock: int) -> list[StepGroup]:
        """The groups of this step: each detector with its students."""
        for name, drawing in self._drawings.items():
            drawing.is_asked = any(clock in steps for steps in self._asking[name])
        found = [step_group_at(tree, clock) for tree in self._trees.values()]
        return [group for group in found if group.roots]

    def after_step(self, groups: list[StepGroup], clock: int, data: StepData, counts: Counts) -> Learned:
        """Gather the generators' drawn tokens, then take the detectors' steps.

        Raises DataError if a remote generator's drawn tokens are not for these rows.
        """
        for drawing in self._drawings.values():
            if drawing.is_asked:
                drawing.finish(clock)
        outcomes: dict[str, StepOutcome] = {}
        read: dict[str, Counts] = {}
        delays = dict.fromkeys(group.roots[0].role.delay for group in groups)
        rows = {delay: self._data(delay, clock, data, counts) for delay in delays}
        for group in groups:
            detector = group.roots[0]
            mine, number = rows[detector.role.delay]
            batches = self._batches(detector, clock, mine)
            found = train_step(group, batches, clock=clock, counts=number, gang=self._gang)
            detector.teacher_forwards += len(batches)
            outcomes |= found
            read |= dict.fromkeys(found, number)
        return outcomes, read

    def _data(self, delay: int, clock: int, data: StepData, counts: Counts) -> tuple[StepData, Counts]:
        if not delay:
            return data, counts
        if delay not in self._feeds:
            self._feeds[delay] = self._open_feed()
        found = self._feeds[delay].at(clock - delay)
        numbers = self._gang.sum(torch.tensor(found.counts.numbers()))
        return found, Counts.of_numbers(numbers.tolist())

    def _batches(self, detector: RoleState, clock: int, data: StepData) -> list[Batch]:
        parts, role = detector.parts_of(MLM.reads), detector.role
        if role.teacher in self._drawings:
            drawn = self._drawings[role.teacher].at(clock - role.delay)
            return [drawn.put(batch, parts) for batch in data.batches]
        received, found = self._inboxes[detector.name].drawn, list[Batch]()
        assert received is not None  # the loop has waited for them
        all_or_none(
            self._gang, lambda: found.extend(received.put(each, parts) for each in data.batches), nothing
        )
        return found

    def close(self) -> None:
        for feed in self._feeds.values():
            feed.close()


def _detectors(training: Training, name: str) -> dict[str, Role]:
    """The roles, here or at other sites, that learn which tokens a role has replaced."""
    roles = {key: each.role for key, each in training.members.items()}
    return {key: role for key, role in roles.items() if role.teacher == name and role.lesson == LESSON}


def _below(members: Mapping[str, RoleState], name: str) -> dict[str, RoleState]:
    """A role and its students, direct or not, without detectors."""
    found = {name: members[name]}
    for other, member in members.items():
        if member.role.teacher == name and member.role.lesson != LESSON:
            found |= _below(members, other)
    return found
