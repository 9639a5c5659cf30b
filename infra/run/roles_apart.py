"""A training whose roles live at different sites: what of it is this site's, and what its gang is told of the
roles elsewhere.
"""

from collections.abc import Collection, Iterator, Mapping

from atelier.engine.config.base import ANSWERS
from atelier.engine.config.error import ConfigError
from atelier.engine.config.link import Link
from atelier.engine.config.record import identify
from atelier.engine.config.role import Role
from atelier.engine.config.run_file import LessonMessages, Member
from atelier.engine.config.trajectory import Segment
from atelier.engine.link.mailbox import Mailbox
from atelier.engine.link.messages import ReaderProgress, lessons, model_at
from atelier.engine.link.readers import Learner, ReadingSites
from atelier.infra.code.code_change import Map, digest_of
from atelier.infra.code.code_map import EXTENSIONS

VERSION = 1  # of the form of messages


def roles_here(roles: Mapping[str, Role], link: Link) -> dict[str, Role]:
    """This site's roles; one whose teacher is elsewhere stands without it, whose checkpoints are not here."""
    return {
        name: role.model_copy(update={"teacher": ""}) if link.is_apart(name, role.teacher) else role
        for name, role in roles.items()
        if link.is_here(name)
    }


def check_finished(roles: Mapping[str, Role], link: Link, *, section: str = "train") -> None:
    """Raise ConfigError for a finished model whose students are elsewhere: a flow that trains nothing at its
    site has nothing to run there. `section`: of the configuration, that has the link.
    """
    for name, role in roles.items():
        teacher = roles.get(role.teacher)
        if teacher is not None and not teacher.moves and link.is_apart(name, role.teacher):
            raise ConfigError(
                f"{section}.link.roles",
                f"{role.teacher} at {link.site_of(role.teacher)} is a finished model, which no flow has teach"
                f" {name} at {link.site_of(name)}",
                f"a teacher that trains, or both at {link.site_of(name)}",
            )


def lesson_of(lesson: str, trajectory: str, link: Link) -> str:
    """Names the messages of a teacher by its last trajectory: equal at all sites, another name where the
    messages would differ.
    """
    config = link.answers if lesson == ANSWERS else {}
    return identify(lesson, VERSION, config, {"teacher": trajectory})


def box_of(name: str, segments: Mapping[str, list[Segment]], link: Link, lesson: str) -> Mailbox:
    """Of a role's messages of this lesson."""
    return Mailbox(link.mailbox, lesson_of(lesson, segments[name][-1].fingerprint, link))


def asked_of(
    roles: Mapping[str, Role], segments: Mapping[str, list[Segment]], link: Link, steps: int
) -> dict[str, int]:
    """By role of this site that students elsewhere, with attach=replay, still need something of: from which
    step it has to be trained again, or trained on, for them. `steps`: of the training.
    """
    found: dict[str, int] = {}
    for name, what, learners in _taught_elsewhere(roles, segments, link):
        box, end = box_of(name, segments, link, what), roles[name].last(steps)
        sites = ReadingSites(box, what, learners, link, steps=steps, end=end)
        asked = sites.asked_from(link.site) if sites.is_replayed_for else None
        if asked is not None:
            found[name] = min(asked, found.get(name, asked))
    return found


def _taught_elsewhere(
    roles: Mapping[str, Role], segments: Mapping[str, list[Segment]], link: Link
) -> Iterator[tuple[str, str, dict[str, Learner]]]:
    """The roles of this site that teach others elsewhere, by which lesson, and whom."""
    for name in (name for name, role in roles.items() if role.moves and link.mailbox and link.is_here(name)):
        for lesson in lessons():
            learners = {
                key: Learner(role, segments[key][-1].fingerprint)
                for key, role in roles.items()
                if role.teacher == name and link.is_apart(key, name) and role.lesson == lesson
            }
            if learners:
                yield name, lesson, learners


def tell_finished(
    finished: Collection[str], roles: Mapping[str, Role], segments: Mapping[str, list[Segment]], link: Link
) -> None:
    """Say of roles of this site that are `finished`, and whose teacher elsewhere would be trained again for
    them or for others, that they are: their mailbox may be a new one.
    """
    replayed = {role.teacher for role in roles.values() if role.attach == "replay"}
    for name in finished:
        role = roles[name]
        if not link.is_apart(name, role.teacher) or role.teacher not in replayed or not link.mailbox:
            continue
        box, last = box_of(role.teacher, segments, link, role.lesson), segments[name][-1]
        known, model = box.progress(link.site), model_at(last.fingerprint, last.end)
        if known is not None and model in known.done:
            continue
        if box.about(link.site) is None:
            teacher = link.site_of(role.teacher)
            box.open_answers(link.site, (link.site, teacher), teacher, most=1, ahead=1, what=role.lesson)
        known = known or ReaderProgress(trajectory=box.trajectory, site=link.site, step=0, safe=0)
        box.tell(known.model_copy(update={"done": known.finished({model})}))


def with_others(
    members: Mapping[str, Member],
    roles: Mapping[str, Role],
    segments: Mapping[str, list[Segment]],
    link: Link,
    vocab: int,
    maps: Mapping[str, Map],
    *,
    accept_code: bool = False,
    section: str = "train",
) -> dict[str, Member]:
    """The gang's members with the roles elsewhere that teach them, or learn from them. `maps`: the code of
    all roles as it is here; `accept_code`: answers may come from other. Raises ConfigError for answers of
    more tokens than the vocabulary has; `section` of the configuration has the link.
    """
    if not link.roles:
        return dict(members)
    apart = [role for name, role in roles.items() if link.is_apart(name, role.teacher)]
    if any(role.lesson == ANSWERS for role in apart) and link.top != "all" and link.top > vocab:
        raise ConfigError(
            f"{section}.link.top", f"{link.top}, and the vocabulary has {vocab}", f"{section}.link.top=all"
        )

    def taught(name: str, code: str) -> dict[str, dict[str, LessonMessages]]:
        """Its messages to students elsewhere. `code`: the digest of its own code."""
        found: dict[str, LessonMessages] = {}
        for key, role in roles.items():
            if role.teacher == name and link.is_apart(key, name):
                trajectory = lesson_of(role.lesson, segments[name][-1].fingerprint, link)
                alike = [
                    one
                    for one, other in roles.items()
                    if (other.teacher, other.lesson) == (name, role.lesson)
                ]
                extra = {f: p for one in alike for f, p in maps[one].items() if f.startswith(EXTENSIONS)}
                computed = code if role.lesson == ANSWERS else digest_of({**maps[name], **extra})
                found[role.lesson] = LessonMessages(trajectory=trajectory, code=computed)
        return {"lessons": dict(sorted(found.items()))}

    found = {name: member.model_copy(update=taught(name, member.code)) for name, member in members.items()}
    for name, role in roles.items():
        teaches = any(link.is_apart(one, name) and roles[one].teacher == name for one in members)
        learns = role.teacher in members and link.is_apart(name, role.teacher)
        if name not in members and (teaches or learns):
            sized = role.model_copy(update={"model": role.model.resolved(vocab)})
            known = {"trajectory": segments[name][-1].fingerprint} if learns else {}
            code = digest_of(maps[name])
            other = Member(role=sized, mode="elsewhere", code=code, accept_code=accept_code)
            found[name] = other.model_copy(update={**taught(name, code), **known})
    return found


def with_teachers(members: Mapping[str, Member], roles: Mapping[str, Role], vocab: int) -> dict[str, Member]:
    """The gang's members with the teachers that have no part in it, of roles that have trained and need no
    steps: such a role may have weights of its teacher's size.
    """
    away = {
        teacher: roles[teacher]
        for name in members
        for teacher in (roles[name].teachers if name in roles else ())
        if teacher in roles and teacher not in members
    }
    return {**members} | {
        name: Member(
            role=role.model_copy(update={"model": role.model.resolved(vocab), "teacher": ""}),
            mode="elsewhere",
        )
        for name, role in away.items()
    }
