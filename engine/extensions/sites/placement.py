"""Divide a training's roles between sites: the roles of this site, and the data that its gang needs about
roles elsewhere. Torch-free.
"""

from collections.abc import Callable, Collection, Iterator, Mapping

from atelier.engine.config.base import ANSWERS
from atelier.engine.config.error import ConfigError
from atelier.engine.config.extensions import FOLDER
from atelier.engine.config.record import identify
from atelier.engine.config.role import Role
from atelier.engine.config.run_file import LessonMessages, Member
from atelier.engine.config.train import Train
from atelier.engine.extensions.sites.config.train.link import Link, link_of
from atelier.engine.extensions.sites.mailbox import Mailbox
from atelier.engine.extensions.sites.messages import ReaderProgress, lessons, model_at
from atelier.engine.extensions.sites.readers import Learner, ReadingSites
from atelier.engine.plan.role_placement import CodeMap, RolePlacement, Segments

VERSION = 1  # of the form of messages


def lesson_of(lesson: str, trajectory: str, link: Link) -> str:
    """Identifies a teacher's messages by its last trajectory: equal at all sites, different where the
    messages would differ.
    """
    config = link.answers if lesson == ANSWERS else {}
    return identify(lesson, VERSION, config, {"teacher": trajectory})


class RolesApart(RolePlacement):
    """The roles of one site; in a run that has all roles, a part for each site."""

    def __init__(self, train: Train, roles: Mapping[str, Role]) -> None:
        super().__init__(train, roles)
        self._link = link_of(train)

    @property
    def parts(self) -> dict[str, Train]:
        link = self._link
        if not link.is_whole:
            return {}
        return {site: self.train.model_copy(update={"link": link.at_site(site)}) for site in link.sites}

    def part_of(self, role: str) -> str:
        return self._link.site_of(role)

    @property
    def claim(self) -> str:
        return self._link.site if self._link.is_linked else ""

    def roles_here(self) -> dict[str, Role]:
        """As in RolePlacement: a role whose teacher is elsewhere has none, for lack of its checkpoints."""
        return {
            name: role.model_copy(update={"teacher": ""}) if self._is_apart(name, role.teacher) else role
            for name, role in self.roles.items()
            if self._link.is_here(name)
        }

    def check_finished(self, section: str) -> None:
        """Raise ConfigError for a finished teacher at another site: no flow would run there."""
        for name, role in self.roles.items():
            teacher, link = self.roles.get(role.teacher), self._link
            if teacher is not None and not teacher.moves and self._is_apart(name, role.teacher):
                raise ConfigError(
                    f"{section}.link.roles",
                    f"{role.teacher} at {link.site_of(role.teacher)} is a finished model, and no flow lets it"
                    f" teach {name} at {link.site_of(name)}",
                    f"a teacher that trains, or both at {link.site_of(name)}",
                )

    def asked_from(self, segments: Segments) -> dict[str, int]:
        found: dict[str, int] = {}
        link, steps = self._link, self.train.num_steps
        for name, what, learners in self._taught_elsewhere(segments):
            box, end = self._box_of(name, segments, what), self.roles[name].last(steps)
            sites = ReadingSites(box, what, learners, link, steps=steps, end=end)
            asked = sites.asked_from(link.site) if sites.is_replayed_for else None
            if asked is not None:
                found[name] = min(asked, found.get(name, asked))
        return found

    def tell_finished(self, finished: Collection[str], segments: Segments) -> None:
        """Report finished roles whose teacher would be trained again for them or for others: their mailbox
        may be new.
        """
        link = self._link
        replayed = {role.teacher for role in self.roles.values() if role.attach == "replay"}
        for name in finished:
            role = self.roles[name]
            if not self._is_apart(name, role.teacher) or role.teacher not in replayed or not link.mailbox:
                continue
            box, last = self._box_of(role.teacher, segments, role.lesson), segments[name][-1]
            known, model = box.progress(link.site), model_at(last.fingerprint, last.end)
            if known is not None and model in known.done:
                continue
            if box.about(link.site) is None:
                teacher = link.site_of(role.teacher)
                box.open_answers(link.site, (link.site, teacher), teacher, most=1, ahead=1, what=role.lesson)
            known = known or ReaderProgress(trajectory=box.trajectory, site=link.site, step=0, safe=0)
            box.tell(known.model_copy(update={"done": known.finished({model})}))

    def with_others(
        self,
        members: Mapping[str, Member],
        segments: Segments,
        vocab: int,
        maps: Mapping[str, CodeMap],
        digest_of: Callable[[CodeMap], str],
        *,
        accept_code: bool,
        section: str,
    ) -> dict[str, Member]:
        """As in RolePlacement. Raises ConfigError for answers with more tokens than the vocabulary."""
        link, roles = self._link, self.roles
        if not link.roles:
            return {**members}
        apart = [role for name, role in roles.items() if self._is_apart(name, role.teacher)]
        if any(role.lesson == ANSWERS for role in apart) and link.top != "all" and link.top > vocab:
            raise ConfigError(
                f"{section}.link.top",
                f"{link.top}, and the vocabulary has {vocab}",
                f"{section}.link.top=all",
            )

        def taught(name: str, code: str) -> dict[str, dict[str, LessonMessages]]:
            """A role's messages to students elsewhere. `code`: the digest of its own code."""
            return {"lessons": self._lessons(name, code, segments, maps, digest_of)}

        found = {key: member.model_copy(update=taught(key, member.code)) for key, member in members.items()}
        for name, role in roles.items():
            teaches = any(self._is_apart(one, name) and roles[one].teacher == name for one in members)
            learns = role.teacher in members and self._is_apart(name, role.teacher)
            if name not in members and (teaches or learns):
                sized = role.model_copy(update={"model": role.model.resolved(vocab)})
                known = {"trajectory": segments[name][-1].fingerprint} if learns else {}
                code = digest_of(maps[name])
                other = Member(role=sized, mode="elsewhere", code=code, accept_code=accept_code)
                found[name] = other.model_copy(update={**taught(name, code), **known})
        return found

    def _lessons(
        self,
        name: str,
        code: str,
        segments: Segments,
        maps: Mapping[str, CodeMap],
        digest_of: Callable[[CodeMap], str],
    ) -> dict[str, LessonMessages]:
        """A teacher's messages to students elsewhere, by lesson."""
        found: dict[str, LessonMessages] = {}
        for key, role in self.roles.items():
            if role.teacher != name or not self._is_apart(key, name):
                continue
            trajectory = lesson_of(role.lesson, segments[name][-1].fingerprint, self._link)
            alike = [
                one
                for one, other in self.roles.items()
                if (other.teacher, other.lesson) == (name, role.lesson)
            ]
            own = f"engine/{FOLDER.name}/"
            extra = {file: part for one in alike for file, part in maps[one].items() if file.startswith(own)}
            computed = code if role.lesson == ANSWERS else digest_of({**maps[name], **extra})
            found[role.lesson] = LessonMessages(trajectory=trajectory, code=computed)
        return dict(sorted(found.items()))

    def _is_apart(self, name: str, teacher: str) -> bool:
        return self._link.is_apart(name, teacher)

    def _box_of(self, name: str, segments: Segments, lesson: str) -> Mailbox:
        """The mailbox of a role's messages of this lesson."""
        trajectory = lesson_of(lesson, segments[name][-1].fingerprint, self._link)
        return Mailbox(self._link.mailbox, trajectory)

    def _taught_elsewhere(self, segments: Segments) -> Iterator[tuple[str, str, dict[str, Learner]]]:
        """The roles of this site that teach others elsewhere, with the lesson and the students."""
        link = self._link
        here = [name for name, role in self.roles.items() if role.moves and link.is_here(name)]
        for name in here if link.mailbox else ():
            for lesson in lessons():
                learners = {
                    key: Learner(role, segments[key][-1].fingerprint)
                    for key, role in self.roles.items()
                    if role.teacher == name and link.is_apart(key, name) and role.lesson == lesson
                }
                if learners:
                    yield name, lesson, learners
