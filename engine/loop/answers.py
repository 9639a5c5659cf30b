"""A distillation over several sites (engine/config/link.py): a teacher's answers to the batches of its steps
go as messages to the sites of its students, and nothing else does; how far those have come goes back.

All sites compute the same samples from the seed: an answer says of which samples it is. A teacher waits for
the slowest site once it is `ahead` steps before it; a student waits for its step's answers. What all sites
have passed in two checkpoints is removed.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

from atelier.engine.checkpoint.collective_call import all_or_none, nothing
from atelier.engine.config.error import DataError
from atelier.engine.config.link import Link
from atelier.engine.config.role import Role
from atelier.engine.config.run_file import Training
from atelier.engine.config.train import Train
from atelier.engine.io.storage import fetch, is_local, join, local_path, verify
from atelier.engine.io.tensorfile import in_file_order
from atelier.engine.link.mailbox import BODY, Answers, Mailbox, ReaderProgress
from atelier.engine.loop.answer_parts import AnswerParts, Received, opened
from atelier.engine.loop.role_state import RoleState
from atelier.engine.loop.stop import StopRequest
from atelier.engine.model.weights import entries_of, in_memory, write_files
from atelier.engine.parallel.gang import Gang

LOOK_EVERY = 0.05  # seconds between looks for messages


class Readers:
    """A teacher here, and the sites of its students elsewhere."""

    def __init__(self, box: Mailbox, member: RoleState, roles: Mapping[str, Role], link: Link, end: int):
        self.box, self.member = box, member
        self.spans: dict[
            str, tuple[int, int]
        ] = {}  # by site: the first step of a student there, and the last
        for name, role in roles.items():
            site, span = link.site_of(name), (int(role.start), role.last(end))
            first, last = self.spans.get(site, span)
            self.spans[site] = min(first, span[0]), max(last, span[1])

    @property
    def end(self) -> int:
        return max(last for _, last in self.spans.values())

    def reads_at(self, clock: int) -> bool:
        return any(first <= clock < last for first, last in self.spans.values())

    def _progress(self, site: str) -> tuple[int, int]:
        """Steps that a site has learned from, and whose answers it will not ask for again."""
        found, first = self.box.progress(site), self.spans[site][0]
        return (first, first) if found is None else (max(first, found.step), max(first, found.safe))

    def is_late(self, clock: int, ahead: int, own: str) -> bool:
        """Whether a site is so many steps behind `clock`. Raises DataError for one that waits for answers
        which are gone: it has begun anew, and is no more where it had come.
        """
        for site, (_, last) in self.spans.items():
            come = self._progress(site)[0]
            is_gone = come < min(last, clock) and self.box.answers(come + 1, own) is None
            if is_gone and self._progress(site)[0] == come:  # not removed meanwhile
                raise DataError(
                    f"{self.box.folder(come + 1, own)}: is gone, and {site}, whose checkpoints are lost,"
                    f" needs the answers to step {come + 1} again; {self.member.name} is at step {clock}:"
                    f" remove {self.box.place} at both sites, and begin both together"
                )
            if last > come and clock - come >= ahead:
                return True
        return False

    def safe(self) -> int:
        """The steps whose answers no site will ask for again."""
        return min(self._progress(site)[1] for site in self.spans)

    def first_missing(self, site: str, until: int) -> int:
        """The first step before `until` whose answers a site may ask for, and which are not there; `until`
        when all are.
        """
        for reader, (_, last) in self.spans.items():
            for clock in range(self._progress(reader)[1], min(last, until)):
                if self.box.answers(clock + 1, site) is None and clock >= self._progress(reader)[1]:
                    return clock
        return until


def most_bytes(train: Train, vocab: int) -> int:
    """The answers to a step have at most so many bytes: 12 for each of the top tokens, and what is beside."""
    tokens, top = train.global_batch * train.sequence, train.link.top
    return tokens * (12 * (vocab if top == "all" else top) + 16) + (1 << 20)


class SitesApart:
    """The messages of one training's roles that live at different sites, on this rank."""

    def __init__(
        self,
        training: Training,
        members: Mapping[str, RoleState],
        gang: Gang,
        stop: StopRequest,
        scratch: Path,
    ) -> None:
        self._link, self._gang, self._stop, self._scratch = training.train.link, gang, stop, scratch
        end = training.train.num_steps
        self._train = training.train
        self._readers: dict[str, Readers] = {}
        self._students: dict[str, list[RoleState]] = {}  # here, by the teacher elsewhere
        self._boxes: dict[str, Mailbox] = {}
        for name, spec in training.members.items():
            box = Mailbox(self._link.mailbox, spec.answers)
            if spec.mode == "elsewhere" and spec.answers:
                taught = [member for member in members.values() if member.role.teacher == name]
                self._students |= {name: taught} if taught else {}
                self._boxes[name] = box
            elif name in members and (roles := training.readers(name)):
                member = members[name]
                self._readers[name] = Readers(box, member, roles, self._link, end)
                member.answering = AnswerParts(self._link, gang, member.grid, member.role.model.tokens)
        self._has_moving = any(member.moves for member in members.values())
        self._told: dict[str, int] = {}  # by teacher elsewhere: steps that this site will not ask for again
        self._begun: dict[str, int] = {}  # the same: how often this site has begun

    @property
    def is_alone(self) -> bool:
        return not (self._readers or self._students)

    @property
    def end(self) -> int:
        """The last step that a site elsewhere learns from; 0 = none does."""
        return max((each.end for each in self._readers.values()), default=0)

    def begin(self, clock: int) -> int:
        """Say that this site takes part; the step at which it begins: `clock`, or an earlier one that a
        finished teacher has not answered. A collective.

        Raises DataError when a teacher that trains is past steps that others still have to learn from.
        """

        def look() -> int:
            if not self._gang.is_first:
                return 0
            found: list[int] = [clock] if self._has_moving else []
            self._open_boxes(clock)
            for name, readers in self._readers.items():
                last = clock if readers.member.moves else readers.end
                missing = readers.first_missing(self._link.site, last)
                if readers.member.moves and missing < clock:
                    raise DataError(
                        f"roles.{name}: is at step {clock}, and its answers to step {missing + 1}, which"
                        f" students at other sites need, are not in {self._link.mailbox}: begin them together"
                    )
                found.append(missing)
            return min(found)

        return all_or_none(self._gang, look, lambda found: found[:1] * self._gang.world)

    def _open_boxes(self, clock: int) -> None:
        """Say in each mailbox that this site takes part, and how far it has come in what it learns."""
        own = self._link.site
        for readers in self._readers.values():
            most = most_bytes(self._train, readers.member.role.model.tokens)
            readers.box.open_answers(own, {own, *readers.spans}, own, most=most, ahead=self._link.ahead)
        for name, students in self._students.items():
            box, teacher = self._boxes[name], self._link.site_of(name)
            most = most_bytes(self._train, students[0].role.model.tokens)
            box.open_answers(own, (own, teacher), teacher, most=most, ahead=self._link.ahead)
            first, known = min(int(student.role.start) for student in students), box.progress(own)
            step = max(first, clock)
            if known is None:
                known = ReaderProgress(trajectory=box.trajectory, site=own, step=step, safe=first)
            begun = known.begun + (known.safe > step)  # a run that had come further, and is lost
            self._told[name], self._begun[name] = min(known.safe, step), begun
            update = {"step": min(known.step, step), "safe": self._told[name], "begun": begun}
            box.tell(known.model_copy(update=update))

    def meet(self, clock: int) -> float:
        """Before a step: wait until its answers are there, and until no site is too far behind; or until a
        stop is asked. The seconds of it. A collective.

        Raises DataError for answers that do not fit, or will not come any more; DamageError for damaged ones.
        """
        if self.is_alone:
            return 0.0
        began = time.perf_counter()
        self._gang.heartbeat.rest("link")
        hearing = {
            name: students
            for name, students in self._students.items()
            if any(student.is_active(clock) for student in students)
        }
        late = [each for each in self._readers.values() if each.reads_at(clock)]
        heads: dict[str, Answers] = {}

        def is_ready() -> bool:
            for name in hearing.keys() - heads.keys():
                if (head := self._head(name, clock)) is not None:
                    heads[name] = head
            ahead, own = self._link.ahead, self._link.site
            is_late = self._gang.is_first and any(each.is_late(clock, ahead, own) for each in late)
            return len(heads) == len(hearing) and not is_late

        if not self._wait(is_ready):
            return time.perf_counter() - began
        found: dict[str, Received] = {}
        all_or_none(self._gang, lambda: found.update(self._open(heads)), nothing)
        for name, students in hearing.items():
            for student in students:
                student.heard = found[name]
        for each in late:
            assert each.member.answering is not None  # it has readers
            each.member.answering.begin()
        return time.perf_counter() - began

    def _wait(self, is_ready: Callable[[], bool]) -> bool:
        """Wait until all ranks are ready; False when a stop is asked before. A collective."""
        world = self._gang.world
        while True:
            ready, is_asked = all_or_none(
                self._gang,
                lambda: (is_ready(), self._stop.is_asked),
                lambda found: [(all(one for one, _ in found), any(one for _, one in found))] * world,
            )
            if ready or is_asked:
                return ready
            time.sleep(LOOK_EVERY)

    def _head(self, teacher: str, clock: int) -> Answers | None:
        """The head of a teacher's answers to a step. Raises DataError when they will not come any more."""
        box, site = self._boxes[teacher], self._link.site_of(teacher)
        if (head := box.answers(clock + 1, site)) is not None:
            return head
        if (there := box.rounds()) and there[0] > clock + 1:
            raise DataError(
                f"{box.folder(clock + 1, site)}: is gone, {site} is at step {there[-1]}: this site's"
                " checkpoints are too old to go on; begin all sites again"
            )
        return None

    def _open(self, heads: Mapping[str, Answers]) -> dict[str, Received]:
        """The answers by teacher, verified."""
        found: dict[str, Received] = {}
        for teacher, head in heads.items():
            place = join(self._boxes[teacher].folder(head.round, head.site), BODY)
            path = self._scratch / f"link-{self._gang.rank}" / head.trajectory[:16] / BODY
            if is_local(place):
                path = local_path(place)
            else:
                fetch(place, path)
            verify(str(path), head.body, place)
            vocab = self._students[teacher][0].role.model.tokens
            found[teacher] = opened(path, place, self._link, vocab)
        return found

    def send(self, clock: int) -> float:
        """After a step: send what the teachers here have answered, and say how far this site has come; the
        seconds of it. A collective.
        """
        began = time.perf_counter()
        for readers in self._readers.values():
            if not readers.reads_at(clock):
                continue
            assert readers.member.answering is not None  # it has readers
            found = readers.member.answering.whole()
            if self._gang.is_first:
                self._send(readers, clock, found)
        self._tell(clock + 1)
        return time.perf_counter() - began

    def _send(self, readers: Readers, clock: int, found: Mapping[str, Tensor]) -> None:
        safe = readers.safe()
        if clock >= safe:  # else it was sent, learned from and removed
            weights = in_memory(found)
            write_files(
                {BODY: in_file_order(entries_of(weights))},
                weights,
                lambda _, parts: readers.box.answer(clock + 1, self._link.site, parts),
            )
        readers.box.forget(safe)

    def _tell(self, step: int, *, is_last: bool = False) -> None:
        """Say how far this site has come in what it learns from each teacher elsewhere."""
        for name, students in self._students.items() if self._gang.is_first else ():
            if not is_last:
                durable = [max(student.durable_steps[0], 0) for student in students]
                self._told[name] = max(self._told.get(name, 0), min(durable))
            else:
                self._told[name] = step = max(student.end for student in students)
            progress = ReaderProgress(
                trajectory=self._boxes[name].trajectory,
                site=self._link.site,
                begun=self._begun.get(name, 1),
                step=step,
                safe=min(self._told[name], step),
            )
            self._boxes[name].tell(progress)

    def finish(self) -> None:
        """Say that this site needs no more answers, its students being published; remove what nobody does."""
        if self._gang.is_first:
            self._tell(0, is_last=True)
            for readers in self._readers.values():
                readers.box.forget(readers.safe())
