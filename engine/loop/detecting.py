"""The roles that learn which tokens a generator has replaced: detectors. Each is the root of a step of its
own, after the generators' step: its rows are those of the generator's step `delay` before, with the tokens
that the generator has drawn there. Students of a detector read the same.
"""

from collections.abc import Callable, Mapping

import torch

from atelier.engine.checkpoint.collective_call import all_or_none, nothing
from atelier.engine.config.objective.mlm import MLM
from atelier.engine.config.run_file import Training
from atelier.engine.loop.counts import Counts
from atelier.engine.loop.drawn import Drawing, Drawn
from atelier.engine.loop.prefetch import Batch, Prefetcher, StepData
from atelier.engine.loop.role_state import RoleState
from atelier.engine.loop.step import StepGroup, StepOutcome, step_group_at, train_step
from atelier.engine.parallel.gang import Gang


class Detecting:
    """The detectors of a gang, and the generators here that they, or detectors at other sites, learn from.
    `open_feed` opens the training's batches once more.
    """

    def __init__(
        self,
        training: Training,
        members: Mapping[str, RoleState],
        gang: Gang,
        open_feed: Callable[[], Prefetcher],
    ) -> None:
        self._gang, self._open_feed = gang, open_feed
        self._feeds: dict[int, Prefetcher] = {}  # by delay
        end = training.train.num_steps
        self._asking: dict[str, list[range]] = {}  # by generator: its steps that are drawn in
        for name, member in members.items():
            readers = training.detectors(name)
            if not readers:
                continue
            self._asking[name] = [each.asked(end) for each in readers.values()]
            member.drawing = Drawing(
                training.train,
                member.role.seed_name or name,
                gang,
                member.grid,
                parts=member.parts_of(MLM.reads),
                num_ids=member.role.model.ids,
                keep=max((each.delay for key, each in readers.items() if key in members), default=0),
            )
        self._generators = {name: members[name] for name in self._asking}
        self._trees = {name: _below(members, name) for name, each in members.items() if each.role.detects}
        self._rest = {
            name: member
            for name, member in members.items()
            if not any(name in tree for tree in self._trees.values())
        }

    def begin(self, clock: int) -> tuple[StepGroup, list[StepGroup]]:
        """The roles of a step: those that see its batches, and each detector with its students."""
        for name, member in self._generators.items():
            assert member.drawing is not None  # it has detectors
            member.drawing.is_asked = any(clock in steps for steps in self._asking[name])
        found = [step_group_at(tree, clock) for tree in self._trees.values()]
        return step_group_at(self._rest, clock), [group for group in found if group.roots]

    def learn(
        self, groups: list[StepGroup], clock: int, data: StepData, counts: Counts
    ) -> tuple[dict[str, StepOutcome], dict[str, Counts]]:
        """After the generators' step: gather what they have drawn, then take the detectors' steps. Their
        outcomes, and what they have read, by role. A collective.

        Raises DataError for drawn tokens of a generator elsewhere that are not of these rows.
        """
        for member in self._generators.values():
            if member.drawing is not None and member.drawing.is_asked:
                member.drawing.finish(clock)
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
        if role.teacher in self._generators:
            drawing = self._generators[role.teacher].drawing
            assert drawing is not None  # it has detectors
            drawn: Drawn = drawing.at(clock - role.delay)
            return [drawn.put(batch, parts) for batch in data.batches]
        assert detector.drawn is not None  # the loop has waited for it
        drawn, found = detector.drawn, list[Batch]()
        all_or_none(
            self._gang, lambda: found.extend(drawn.put(each, parts) for each in data.batches), nothing
        )
        return found

    def close(self) -> None:
        for feed in self._feeds.values():
            feed.close()


def _below(members: Mapping[str, RoleState], name: str) -> dict[str, RoleState]:
    """A role and its students, direct or not, but for those that are detectors."""
    found = {name: members[name]}
    for other, member in members.items():
        if member.role.teacher == name and not member.role.detects:
            found |= _below(members, other)
    return found
