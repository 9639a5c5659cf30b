"""A training whose roles live at different sites: what of it is this site's, and what its gang is told of the
roles elsewhere.
"""

from collections.abc import Mapping

from atelier.engine.config.error import ConfigError
from atelier.engine.config.link import Link
from atelier.engine.config.record import identify
from atelier.engine.config.role import Role
from atelier.engine.config.run_file import Member
from atelier.engine.config.trajectory import Segment

VERSION = 1  # of what answers are


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


def answers_of(trajectory: str, link: Link) -> str:
    """Names the answers of a teacher by its last trajectory: equal at all sites, another one where they would
    differ.
    """
    return identify("answers", VERSION, link.answers, {"teacher": trajectory})


def drawings_of(trajectory: str) -> str:
    """The same of what a generator draws."""
    return identify("drawings", VERSION, {}, {"teacher": trajectory})


def with_others(
    members: Mapping[str, Member],
    roles: Mapping[str, Role],
    segments: Mapping[str, list[Segment]],
    link: Link,
    vocab: int,
    *,
    section: str = "train",
) -> dict[str, Member]:
    """The gang's members with the roles elsewhere that teach them, or learn from them. Raises ConfigError for
    answers of more tokens than the vocabulary has; `section` of the configuration has the link.
    """
    if not link.roles:
        return dict(members)
    apart = [role for name, role in roles.items() if link.is_apart(name, role.teacher)]
    answering = {role.teacher for role in apart if not role.detects}
    drawing = {role.teacher for role in apart if role.detects}
    if answering and link.top != "all" and link.top > vocab:
        raise ConfigError(
            f"{section}.link.top", f"{link.top}, and the vocabulary has {vocab}", f"{section}.link.top=all"
        )

    def told(name: str) -> dict[str, str]:
        last = segments[name][-1].fingerprint if name in answering | drawing else ""
        found = {"answers": answers_of(last, link)} if name in answering else {}
        return found | ({"drawings": drawings_of(last)} if name in drawing else {})

    found = {name: member.model_copy(update=told(name)) for name, member in members.items()}
    for name, role in roles.items():
        teaches = any(link.is_apart(one, name) and roles[one].teacher == name for one in members)
        learns = role.teacher in members and link.is_apart(name, role.teacher)
        if name not in members and (teaches or learns):
            sized = role.model_copy(update={"model": role.model.resolved(vocab)})
            found[name] = Member(role=sized, mode="elsewhere").model_copy(update=told(name))
    return found
