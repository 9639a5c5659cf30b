"""Send and receive teacher outputs between sites (config/train/link.py).

A message has the outputs of one teacher step (a lesson, lessons.py; mostly its answers). Nothing else goes to
the students' sites. They report their progress back, in steps of the teacher.

All sites compute the same samples from the seed, so a message only names its samples. A teacher waits while
it is `ahead` steps ahead of the slowest site. A student waits for the answers of its step. Messages that all
sites have passed in two checkpoints are removed.
"""

import time
from collections.abc import Callable, Mapping

from torch import Tensor

from atelier.engine.checkpoint.collective_call import all_or_none, nothing
from atelier.engine.config.base import ANSWERS
from atelier.engine.config.error import DataError, StoppedError
from atelier.engine.extensions.sites.answer_ends import (
    LearnedFrom,
    RemoteStudents,
    RemoteTeacher,
    learned_from,
)
from atelier.engine.extensions.sites.answer_parts import AnswerParts, opened
from atelier.engine.extensions.sites.config.train.link import link_of
from atelier.engine.extensions.sites.encoded import body_bytes
from atelier.engine.extensions.sites.lessons import most_bytes
from atelier.engine.extensions.sites.link_meter import LinkMeter
from atelier.engine.extensions.sites.long_wait import LongWait
from atelier.engine.extensions.sites.mailbox import Mailbox
from atelier.engine.extensions.sites.messages import BODY, OfStep, ReaderProgress
from atelier.engine.extensions.sites.readers import ENDED, reading_sites
from atelier.engine.io.storage import fetch, is_local, join, local_path, verify
from atelier.engine.io.tensorfile import in_file_order
from atelier.engine.loop.hooks import HookContext
from atelier.engine.loop.role_state import RoleState
from atelier.engine.model.weights import entries_of, in_memory, write_files

LOOK_EVERY = 0.05  # seconds between looks for messages
CONCLUSION = (b"ended",)
MOST_CONCLUSION = 1 << 10  # bytes


class SitesApart:
    """Messages between roles at different sites, on this rank."""

    def __init__(self, context: HookContext, meter: LinkMeter) -> None:
        training, members, gang = context.training, context.members, context.gang
        self._link, self._gang, self._stop = link_of(training.train), gang, context.stop
        self._scratch, self._train = context.build.scratch, training.train
        self._meter, self._say = meter, context.warn
        self._readers: list[RemoteStudents] = []
        self._heard: list[RemoteTeacher] = []
        self._opened: dict[str, str] = {}  # digests of the messages of this step, by student
        each = (
            (name, spec, *lesson)
            for name, spec in training.members.items()
            for lesson in spec.lessons.items()
        )
        for name, spec, what, messages in each:
            box = Mailbox(self._link.mailbox, messages.trajectory, "" if spec.accept_code else messages.code)
            if spec.mode == "elsewhere":
                taught = [m for m in members.values() if m.role.teacher == name and m.role.lesson == what]
                if taught:
                    self._heard.append(RemoteTeacher(box, what, self._link.site_of(name), taught))
                    for student in taught:
                        student.attach(LearnedFrom())
            elif name in members and (sites := reading_sites(training, name, what)) is not None:
                self._readers.append(RemoteStudents(sites, members[name]))
                if what == ANSWERS:
                    ids = members[name].role.model.ids
                    members[name].attach(AnswerParts(self._link, gang, members[name].grid, ids))
        self._has_moving = any(member.moves for member in members.values())

    @property
    def is_alone(self) -> bool:
        return not (self._readers or self._heard)

    @property
    def end(self) -> int:
        """The last step that a student at another site learns from; 0 = none does."""
        return max((each.sites.last for each in self._readers), default=0)

    def begin(self, clock: int) -> int:
        """Announce this site in the mailboxes and return the step at which it begins: `clock`, or an earlier
        one that a finished teacher has not answered. A collective.

        Raises DataError if a training teacher is past steps that others still need, or if the answers that
        this site needs first are gone.
        """

        def look() -> int:
            if not self._gang.is_first:
                return 0
            found: list[int] = [clock] if self._has_moving else []
            self._open_boxes(clock)
            for readers in self._readers:
                name = readers.member.name
                last = clock if readers.member.moves else readers.sites.last
                missing = readers.sites.first_missing(self._link.site, last)
                if readers.member.moves and missing < clock:
                    raise DataError(
                        f"roles.{name}: is at step {clock}, and its answers to step {missing + 1}, which"
                        f" students at other sites need, are not in {self._link.mailbox}: start teacher and"
                        " students together, or with roles.<student>.attach=replay"
                    )
                found.append(missing)
            return min(found)

        return all_or_none(self._gang, look, lambda found: found[:1] * self._gang.world)

    def _open_boxes(self, clock: int) -> None:
        """Announce this site in each mailbox, with its progress in each lesson."""
        own, ahead = self._link.site, self._link.ahead
        for readers in self._readers:
            most = most_bytes(self._train, readers.member.role.model, readers.what)
            sites, students = {own, *readers.sites.taught}, readers.sites.students
            readers.box.open_answers(
                own, sites, own, most=most, ahead=ahead, what=readers.what, students=students
            )
        for heard in self._heard:
            most = most_bytes(self._train, heard.students[0].role.model, heard.what)
            sites, longest = (own, heard.site), max(ahead, heard.behind)  # steps after its last one
            heard.box.open_answers(own, sites, heard.site, most=most, ahead=longest, what=heard.what)
            said = heard.begin(own, clock)
            heard.head(said.step)  # raises if it is gone, before the teacher gets this progress
            heard.box.tell(said)
            for box in heard.endings:
                box.open_answers(own, sites, heard.site, most=MOST_CONCLUSION, ahead=1, what=heard.what)
                box.tell(ReaderProgress(trajectory=box.trajectory, site=own, step=0, safe=0))

    def meet(self, clock: int) -> float:
        """Before a step: wait until its answers are there and no site is too far behind, or until a stop is
        asked. Returns the seconds. A collective.

        Raises DataError for answers that do not fit or will never arrive, DamageError for damaged ones.
        """
        if self.is_alone:
            return 0.0
        began = time.perf_counter()
        self._gang.heartbeat.rest("link")
        hearing = [
            (heard, delay)
            for heard in self._heard
            for delay in {each.role.delay for each in heard.students if each.is_active(clock)}
        ]
        late = [each for each in self._readers if each.reads_at(clock)]
        heads: dict[int, OfStep] = {}  # by place in `hearing`

        def is_ready() -> bool:
            for number, (heard, delay) in enumerate(hearing):
                if number not in heads and (head := heard.head(clock - delay)) is not None:
                    heads[number] = head
            ahead, own = self._link.ahead, self._link.site
            is_late = self._gang.is_first and any(each.is_late(clock, ahead, own) for each in late)
            goes_on = not self._gang.is_first or all(heard.goes_on(clock, delay) for heard, delay in hearing)
            return len(heads) == len(hearing) and not is_late and goes_on

        def missing() -> list[str]:
            lacking = [
                f"{heard.site}, for step {clock - delay + 1} of {heard.box.trajectory[:16]}"
                for number, (heard, delay) in enumerate(hearing)
                if number not in heads
            ]
            return lacking + [line for each in late for line in each.behind(clock, self._link.ahead)]

        if not self._wait(is_ready, missing):
            return time.perf_counter() - began

        def open_all() -> None:
            for number, (heard, delay) in enumerate(hearing):
                self._open(heard, heads[number], heard.active(clock, delay))

        all_or_none(self._gang, open_all, nothing)
        for number, (heard, delay) in enumerate(hearing):
            ahead = heard.ahead(clock - delay) if self._gang.is_first else 0
            for student in heard.active(clock, delay):
                size = heads[number].body.bytes
                self._meter.add(student.name, link_received_bytes=size, link_ahead_steps=ahead)
        for each in late:
            each.member.taps[each.what].is_asked = True
        return time.perf_counter() - began

    def _wait(self, is_ready: Callable[[], bool], missing: Callable[[], list[str]]) -> bool:
        """Wait until all ranks are ready; False if a stop is asked before. A collective. `missing`: names of
        the missing messages.
        """
        world, wait = self._gang.world, LongWait(self._say)
        while True:
            ready, is_asked = all_or_none(
                self._gang,
                lambda: (is_ready(), self._stop.is_asked),
                lambda found: [(all(one for one, _ in found), any(one for _, one in found))] * world,
            )
            if ready or is_asked:
                return ready
            if wait.is_due:
                wait.say(" and ".join(missing()) or "another rank")
            time.sleep(LOOK_EVERY)

    def _open(self, heard: RemoteTeacher, head: OfStep, students: list[RoleState]) -> None:
        """Verify a teacher's message and pass it to these students."""
        place = join(heard.box.folder(head.round, head.site), BODY)
        head.check_code(heard.box.code, place)
        each = f"{students[0].role.delay}-{head.round % 2}"  # the file before is still being read
        path = self._scratch / f"link-{self._gang.rank}" / head.trajectory[:16] / each / BODY
        if is_local(place):
            path = local_path(place)
        else:
            fetch(place, path)
        verify(str(path), head.body, place)
        self._opened |= {student.name: head.body.sha256 for student in students}
        model = students[0].role.model
        if heard.what != ANSWERS:
            for student in students:
                student.inboxes[heard.what].open(path, place, head.round - 1)
            return
        received = opened(path, place, self._link, model.ids)
        if not all(learned_from(student).digest for student in students):  # their first answers
            received.check_mass()
        for student in students:
            student.remote = received

    def send(self, clock: int) -> float:
        """After a step: send the outputs of the teachers here and report this site's progress. Returns the
        seconds. A collective.
        """
        began = time.perf_counter()
        for heard in self._heard:
            for student in heard.students:
                last = learned_from(student)
                last.digest = self._opened.get(student.name, last.digest)
        for readers in self._readers:
            if not readers.reads_at(clock):
                continue
            found = readers.whole(clock)
            if self._gang.is_first:
                self._send(readers, clock, found)
        self._tell(clock + 1)
        return time.perf_counter() - began

    def _send(self, readers: RemoteStudents, clock: int, found: Mapping[str, Tensor]) -> None:
        safe = readers.safe()
        if clock >= safe:  # else it was sent, learned from and removed before
            weights = in_memory(found)
            entries = in_file_order(entries_of(weights))
            write_files(
                {BODY: entries},
                weights,
                lambda _, parts: readers.box.answer(clock + 1, self._link.site, parts, readers.what),
            )
            ahead = clock + 1 - readers.slowest()
            self._meter.add(readers.member.name, link_bytes=body_bytes(entries), link_ahead_steps=ahead)
        readers.box.forget(safe)

    def _tell(self, step: int) -> None:
        """Report this site's progress to each teacher elsewhere."""
        for heard in self._heard if self._gang.is_first else ():
            # keep the last message that a checkpoint learned from: a resumed run compares it
            durable = [max(each.durable_steps[0] - each.role.delay - 1, 0) for each in heard.students]
            heard.told = max(heard.told, min(durable))
            heard.box.tell(heard.progress(self._link.site, max(step - heard.behind, heard.first)))

    def conclude(self, clock: int) -> None:
        """After the last step, before models are published: wait until the teachers elsewhere that are
        trained again report equal final weights, then report the same for the teachers here. A collective.

        Raises StoppedError if a stop is asked before.
        """
        endings = [(box, heard) for heard in self._heard for box in heard.endings]
        if endings:
            self._gang.heartbeat.rest("link")

            def lacking() -> list[str]:
                return [
                    f"the end of the teacher at {heard.site}"
                    for box, heard in endings
                    if not box.has(ENDED, heard.site)
                ]

            if not self._wait(lambda: not lacking(), lacking):
                raise StoppedError(f"stopped at step {clock}")
        for readers in self._readers if self._gang.is_first else ():
            for site, box in readers.endings():
                own = self._link.site
                box.open_answers(own, (own, site), own, most=MOST_CONCLUSION, ahead=1, what=readers.what)
                box.answer(ENDED, self._link.site, CONCLUSION, readers.what)

    def finish(self) -> None:
        """Report that this site's students are published; remove messages that no site needs."""
        if self._gang.is_first:
            for heard in self._heard:
                last = max(each.role.taught(each.end).stop for each in heard.students)
                heard.told = max(heard.told, last - 1)  # a longer training compares the last one
                heard.box.tell(heard.progress(self._link.site, last, is_over=True))
            for readers in self._readers:
                readers.box.forget(readers.safe())
