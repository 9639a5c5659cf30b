"""The two ends of what a role says of its steps to others at other sites (engine/loop/answers.py): the sites
that read what a role here says, and what is heard here of a role elsewhere. Steps are those of the role that
says it; a role that detects replaced tokens is `delay` steps behind it.
"""

from collections.abc import Iterable, Mapping

from torch import Tensor

from atelier.engine.config.error import DataError
from atelier.engine.config.link import Link
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.role import Role
from atelier.engine.config.train import Train
from atelier.engine.link.answer_size import answer_bytes, drawing_entries
from atelier.engine.link.encoded import body_bytes
from atelier.engine.link.mailbox import Mailbox, OfStep, What
from atelier.engine.loop.role_state import RoleState


class Readers:
    """A teacher here, and the sites of its students elsewhere."""

    def __init__(
        self, box: Mailbox, what: What, member: RoleState, roles: Mapping[str, Role], link: Link, end: int
    ):
        self.box, self.member = box, member
        self.what: What = what
        by_site: dict[str, list[Role]] = {}
        for name, role in roles.items():
            by_site.setdefault(link.site_of(name), []).append(role)
        self.taught = {site: _hull(each.taught(end) for each in found) for site, found in by_site.items()}
        self.asked = {site: _hull(each.asked(end) for each in found) for site, found in by_site.items()}

    @property
    def end(self) -> int:
        return max(steps.stop for steps in self.taught.values())

    def whole(self, clock: int) -> dict[str, Tensor]:
        """What is sent of a step. A collective."""
        if self.what == "drawings":
            assert self.member.drawing is not None  # it has detectors
            return self.member.drawing.at(clock).sent(self.member.role.model.ids)
        assert self.member.answering is not None  # it has students elsewhere
        return self.member.answering.whole()

    def reads_at(self, clock: int) -> bool:
        return any(clock in steps for steps in self.asked.values())

    def _progress(self, site: str) -> tuple[int, int]:
        """Steps that a site has learned from, and whose answers it will not ask for again."""
        found, first = self.box.progress(site), self.taught[site].start
        return (first, first) if found is None else (max(first, found.step), max(first, found.safe))

    def is_late(self, clock: int, ahead: int, own: str) -> bool:
        """Whether a site is so many steps behind `clock`. Raises DataError for one that waits for answers
        which are gone: it has begun anew, and is no more where it had come.
        """
        for site, steps in self.taught.items():
            come, last = self._progress(site)[0], steps.stop
            is_gone = come < min(last, clock) and self.box.answers(come + 1, own, self.what) is None
            if is_gone and self._progress(site)[0] == come:  # not removed meanwhile
                raise DataError(
                    f"{self.box.folder(come + 1, own)}: is gone, and {site}, whose checkpoints are lost,"
                    f" needs the answers to step {come + 1} again; {self.member.name} is at step {clock}:"
                    f" remove {self.box.place} at both sites, and begin both together"
                )
            if last > come and clock - come >= ahead:
                return True
        return False

    def slowest(self) -> int:
        """Steps that all sites have learned from."""
        return min(self._progress(site)[0] for site in self.taught)

    def safe(self) -> int:
        """The steps whose answers no site will ask for again."""
        return min(self._progress(site)[1] for site in self.taught)

    def first_missing(self, site: str, until: int) -> int:
        """The first step before `until` whose answers a site may ask for, and which are not there; `until`
        when all are.
        """
        for reader, steps in self.asked.items():
            for clock in range(self._progress(reader)[1], min(steps.stop, until)):
                is_there = self.box.answers(clock + 1, site, self.what) is not None
                if not is_there and clock >= self._progress(reader)[1]:
                    return clock
        return until


def _hull(each: Iterable[range]) -> range:
    """All steps from the first of these to the last."""
    found = list(each)
    return range(min(steps.start for steps in found), max(steps.stop for steps in found))


def most_bytes(train: Train, model: ModelSpec, what: What) -> int:
    """The message of a step has at most so many bytes: those of one in which every token is scored, or
    hidden. `model`: the teacher's, or one of the same vocabulary.
    """
    rows, tokens = train.global_batch, train.global_batch * train.sequence
    if what == "drawings":
        return body_bytes(drawing_entries(model.ids, rows=rows, tokens=tokens))
    return answer_bytes(train.link, model.tokens, rows=rows, tokens=tokens, precision=train.precision)


class Heard:
    """What comes of a teacher at another site, `site`, for its students here: `told` are its steps whose
    messages this site will not ask for again, `begun` says how often this site has begun.
    """

    def __init__(self, box: Mailbox, what: What, site: str, students: list[RoleState]) -> None:
        self.box, self.site, self.students = box, site, students
        self.what: What = what
        self.told, self.begun = 0, 1
        self.first = min(student.role.taught(student.end).start for student in students)
        self.behind = max(student.role.delay for student in students)

    def active(self, clock: int, delay: int) -> list[RoleState]:
        """Those that learn at step `clock` from the step `delay` before."""
        return [each for each in self.students if each.is_active(clock) and each.role.delay == delay]

    def ahead(self, step: int) -> int:
        """Steps that the messages here go on after the one of `step`, from 0."""
        return max(self.box.rounds(), default=step + 1) - step - 1

    def head(self, step: int) -> OfStep | None:
        """The head of the message of a teacher's step, from 0. Raises DataError when it will not come any
        more.
        """
        if (head := self.box.answers(step + 1, self.site, self.what)) is not None:
            return head
        if (there := self.box.rounds()) and there[0] > step + 1:
            raise DataError(
                f"{self.box.folder(step + 1, self.site)}: is gone, {self.site} is at step {there[-1]}: this"
                " site's checkpoints are too old to go on; begin all sites again"
            )
        return None


def what_of(role: Role) -> What:
    """What a role hears of a teacher elsewhere."""
    return "drawings" if role.detects else "answers"
