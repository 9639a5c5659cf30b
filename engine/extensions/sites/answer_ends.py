"""Sender and receiver of teacher outputs (answers.py): a teacher here with students at other sites, and a
teacher at another site with students here. Steps are the teacher's; a student may be `delay` steps behind.
"""

from torch import Tensor

from atelier.engine.checkpoint.state import Tree
from atelier.engine.config.error import DataError
from atelier.engine.extensions.sites.mailbox import Mailbox
from atelier.engine.extensions.sites.messages import OfStep, ReaderProgress, model_at
from atelier.engine.extensions.sites.readers import ReadingSites, ending
from atelier.engine.loop.attachments import Attachment
from atelier.engine.loop.role_state import RoleState


class LearnedFrom(Attachment):
    """The digest of the message from which a student learned last."""

    name = "learned_from"

    def __init__(self) -> None:
        self.digest = ""

    def state(self) -> Tree:
        return self.digest

    def restore(self, state: Tree, step: int) -> None:
        self.digest = str(state or "")


def learned_from(member: RoleState) -> LearnedFrom:
    """The state of a role whose teacher is at another site."""
    found = member.attached[LearnedFrom.name]
    assert isinstance(found, LearnedFrom)
    return found


class RemoteStudents:
    """A teacher here and the sites of its students elsewhere."""

    def __init__(self, sites: ReadingSites, member: RoleState) -> None:
        self.sites, self.member = sites, member
        self.box = sites.box
        self.what = sites.what

    def whole(self, clock: int) -> dict[str, Tensor]:
        """The tensors of a step's message. A collective."""
        return self.member.taps[self.what].message(clock)

    def reads_at(self, clock: int) -> bool:
        return any(clock in steps for steps in self.sites.asked.values())

    def is_late(self, clock: int, ahead: int, own: str) -> bool:
        """Whether a site is `ahead` steps or more behind `clock`. Raises DataError for a site that started
        again and waits for answers that were removed.
        """
        for site, steps in self.sites.taught.items():
            come, last = self.sites.come(site)[0], steps.stop
            is_gone = come < min(last, clock) and self.box.answers(come + 1, own, self.what) is None
            if is_gone and self.sites.come(site)[0] == come:  # not removed meanwhile
                way_out = f"remove {self.box.place} at both sites, and start both together"
                if self.sites.is_replayed_for:
                    way_out = f"the same command trains {self.member.name} again from there"
                raise DataError(
                    f"{self.box.folder(come + 1, own)}: is gone, and {site}, whose checkpoints are lost,"
                    f" needs the answers to step {come + 1} again; {self.member.name} is at step {clock}:"
                    f" {way_out}"
                )
            if last > come and clock - come >= ahead:
                return True
        return False

    def behind(self, clock: int, ahead: int) -> list[str]:
        """The sites that are `ahead` steps or more behind `clock`, with the next step of each."""
        come = {site: self.sites.come(site)[0] for site in self.sites.taught}
        return [
            f"{site}, to learn from step {come[site] + 1} of {self.box.trajectory[:16]}"
            for site, steps in self.sites.taught.items()
            if steps.stop > come[site] and clock - come[site] >= ahead
        ]

    def endings(self) -> list[tuple[str, Mailbox]]:
        """By site of students, the mailboxes that report that the replayed teacher has equal weights."""
        if not self.sites.is_replayed_for:
            return []
        return [(site, box) for site in self.sites.taught for box in self.sites.endings(site).values()]

    def slowest(self) -> int:
        """How many steps all sites have learned from."""
        return min(self.sites.come(site)[0] for site in self.sites.taught)

    def safe(self) -> int:
        """How many steps' answers no site will ask for again. The last one is kept for a longer training."""
        return min(min(self.sites.come(site)[1], steps.stop - 1) for site, steps in self.sites.taught.items())


class RemoteTeacher:
    """Inbound outputs of a teacher at another `site`, for its students here. `told`: steps whose messages
    this site will not ask for again; `begun`: how often this site has begun; `done`: its roles that are
    published.
    """

    def __init__(self, box: Mailbox, what: str, site: str, students: list[RoleState]) -> None:
        self.box, self.site, self.students = box, site, students
        self.what = what
        models = {each.spec.segments[-1].fingerprint: each.end for each in students}
        self.models = {each: model_at(each, models[each]) for each in sorted(models)}  # by trajectory
        self.done: tuple[str, ...] = ()
        self.is_replayed = any(each.role.attach == "replay" for each in students)
        self.told, self.begun = 0, 1
        self.first = min(student.role.taught(student.end).start for student in students)
        self.behind = max(student.role.delay for student in students)

    def begin(self, own: str, clock: int) -> ReaderProgress:
        """The progress that this site, `own`, reports when it begins at step `clock`."""
        step, known = max(self.first, clock - self.behind), self.box.progress(own)
        if known is None:
            known = ReaderProgress(trajectory=self.box.trajectory, site=own, step=step, safe=self.first)
        elif not known.names_none and not {*self.models} <= {*known.students}:  # of other roles
            update = {"begun": known.begun + 1, "step": step, "safe": self.first}
            known = known.model_copy(update=update)
        self.begun = known.begun + (known.safe > step)  # a run that had come further, and is lost
        self.told = min(known.safe, step)
        self.done = tuple(each for each in known.done if each not in self.models.values())
        return self.progress(own, min(known.step, step))

    def progress(self, own: str, step: int, *, is_over: bool = False) -> ReaderProgress:
        """The report of a reader that has learned from `step` steps; `is_over`: it is published."""
        said = ReaderProgress(
            trajectory=self.box.trajectory,
            site=own,
            begun=self.begun,
            step=step,
            safe=min(self.told, step),
            students=tuple(self.models),
            done=self.done,
        )
        return said.model_copy(update={"done": said.finished(self.models.values())}) if is_over else said

    @property
    def endings(self) -> list[Mailbox]:
        """The mailboxes that report that the replayed teacher has equal weights."""
        return (
            [ending(self.box, each, self.begun) for each in self.models.values()] if self.is_replayed else []
        )

    def active(self, clock: int, delay: int) -> list[RoleState]:
        """The students that learn at step `clock` from the teacher's step `clock - delay`."""
        return [each for each in self.students if each.is_active(clock) and each.role.delay == delay]

    def goes_on(self, clock: int, delay: int) -> bool:
        """Whether the message is here from which the students that are `delay` steps behind learned last.
        Raises DataError if its digest differs: the teacher has changed.
        """
        last = clock - delay - 1
        begun = [each for each in self.active(clock, delay) if learned_from(each).digest]
        head = self.box.answers(last + 1, self.site, self.what) if begun else None
        if head is None:
            return not begun or last < self.told
        for each in begun:
            if head.body.sha256 != learned_from(each).digest:
                places = ", ".join(segment.url for segment in each.spec.segments)
                raise DataError(
                    f"{self.box.folder(last + 1, self.site)}: {self.what} differ from those that {each.name}"
                    f" learned from at step {clock}: its teacher began again and has changed; remove"
                    f" {places}, so that it begins again too"
                )
        return True

    def ahead(self, step: int) -> int:
        """How many steps after `step` (from 0) have messages here."""
        return max(self.box.rounds(), default=step + 1) - step - 1

    def head(self, step: int) -> OfStep | None:
        """The head of the message of a teacher's step, from 0. Raises DataError if it will never arrive:
        later ones are here, and the teacher is not trained again.
        """
        if (head := self.box.answers(step + 1, self.site, self.what)) is not None:
            return head
        if not self.is_replayed and (there := self.box.rounds()) and there[0] > step + 1:
            raise DataError(
                f"{self.box.folder(step + 1, self.site)}: is gone, {self.site} is at step {there[-1]}: this"
                f" site's checkpoints are lost or too old; remove {self.box.place} at all sites and start all"
                " again"
            )
        return None
