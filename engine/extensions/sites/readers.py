"""Progress of the sites that learn from a role at another site: which of its steps are still needed.
Torch-free.

A site without a report, or with one about other roles, begins at the first step of its students.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from atelier.engine.config.record import identify
from atelier.engine.config.role import Role
from atelier.engine.config.run_file import Training
from atelier.engine.extensions.sites.config.train.link import Link, link_of
from atelier.engine.extensions.sites.mailbox import Mailbox
from atelier.engine.extensions.sites.messages import model_at

ENDED = 1  # the round of the only message of an ending


@dataclass(frozen=True)
class Learner:
    """A role that learns at another site, and its last trajectory ('' = unknown: any)."""

    role: Role
    trajectory: str = ""


class ReadingSites:
    """The sites that learn from a role, which ends at step `end`. Steps are that role's, from 0. By site:
    the steps that its learners are `taught`, and those that are sent for them (`asked`).
    """

    def __init__(
        self, box: Mailbox, what: str, learners: Mapping[str, Learner], link: Link, *, steps: int, end: int
    ) -> None:
        self.box, self.end = box, end
        self.what = what
        by_site: dict[str, list[Learner]] = {}
        for name, learner in learners.items():
            by_site.setdefault(link.site_of(name), []).append(learner)
        self.taught = {site: _hull(a.role.taught(steps) for a in them) for site, them in by_site.items()}
        self.asked = {site: _hull(a.role.asked(steps) for a in them) for site, them in by_site.items()}
        self.students = {  # by site: models by trajectory
            site: {a.trajectory: model_at(a.trajectory, a.role.last(steps)) for a in them if a.trajectory}
            for site, them in by_site.items()
        }
        self.is_replayed_for = any(each.role.attach == "replay" for each in learners.values())

    @property
    def last(self) -> int:
        """The last step that any site learns from."""
        return max(steps.stop for steps in self.taught.values())

    def come(self, site: str) -> tuple[int, int]:
        """How many steps a site has learned from, and how many steps' messages it will not ask for again."""
        first, last = self.taught[site].start, self.taught[site].stop
        found, students = self.box.progress(site), self.students.get(site, {})
        is_known = found is not None and (
            found.covers(students) or (found.names_none and not self.is_replayed_for)
        )
        if found is None or not is_known:
            return first, first
        if found.is_done_with(students):
            return last, last
        return max(first, found.step), max(first, found.safe)

    def is_done(self, site: str) -> bool:
        """Whether a site's models are published."""
        found = self.box.progress(site)
        return found is not None and found.is_done_with(self.students.get(site, {}))

    def first_missing(self, own: str, until: int) -> int:
        """The first step before `until` whose message from `own`, the role's site, is missing and may be
        asked for; `until` if none is.
        """
        found = until
        for reader, steps in self.asked.items():
            for clock in range(self.come(reader)[1], min(steps.stop, until)):
                is_there = self.box.answers(clock + 1, own, self.what) is not None
                if not is_there and clock >= self.come(reader)[1]:
                    found = min(found, clock)
                    break
        return found

    def asked_from(self, own: str) -> int | None:
        """The step from which the role must be trained again for these sites: that of the first missing
        message; the role's end if only an end message is missing; None if nothing is.
        """
        missing = self.first_missing(own, self.last)
        if missing < self.last:
            return missing
        waiting = [
            ending for site in self.taught if not self.is_done(site) for ending in self.endings(site).values()
        ]
        return self.end if any(not each.has(ENDED, own) for each in waiting) else None

    def endings(self, site: str) -> dict[str, Mailbox]:
        """By student's model at a site: the mailbox of its end message (`ending`). A student that the site's
        report does not cover will begin once more.
        """
        found, students = self.box.progress(site), self.students.get(site, {})
        begun = found.begun + (not found.covers(students)) if found is not None else 1
        return {model: ending(self.box, model, begun) for model in students.values()}


def _hull(each: Iterable[range]) -> range:
    """All steps from the first of these to the last."""
    found = list(each)
    return range(min(steps.start for steps in found), max(steps.stop for steps in found))


def ending(box: Mailbox, model: str, begun: int) -> Mailbox:
    """The mailbox of one end message, of round `ENDED`. It tells the student that ends as `model`, whose site
    has `begun` so often, that its teacher was trained again to the same weights.
    """
    parents = {"answers": box.trajectory, "student": model}
    return Mailbox(box.url, identify("ending", 1, {"begun": begun}, parents))


def reading_sites(training: Training, name: str, what: str) -> ReadingSites | None:
    """The sites that learn from a role here by this lesson; None = none."""
    member, link = training.members[name], link_of(training.train)
    learners = {
        key: Learner(role, training.members[key].trajectory)
        for key, role in training.readers(name).items()
        if role.lesson == what
    }
    if what not in member.lessons or not learners:
        return None
    messages = member.lessons[what]
    box = Mailbox(link.mailbox, messages.trajectory, messages.code)
    steps = training.train.num_steps
    return ReadingSites(box, what, learners, link, steps=steps, end=member.role.last(steps))


def asked_from(training: Training) -> dict[str, int]:
    """By role here that is trained again for other sites: the first step."""
    found: dict[str, int] = {}
    for name, member in training.here.items():
        for what in member.lessons if member.role.moves and member.mode != "frozen" else ():
            sites = reading_sites(training, name, what)
            asked = (
                sites.asked_from(link_of(training.train).site) if sites and sites.is_replayed_for else None
            )
            if asked is not None:
                found[name] = min(asked, found.get(name, asked))
    return found
