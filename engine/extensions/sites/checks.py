"""Checks of a training whose roles live at different sites. Torch-free."""

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter

from atelier.engine.config.base import ANSWERS
from atelier.engine.config.error import ConfigError, nearest
from atelier.engine.config.mixture import Phase
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.role import Role
from atelier.engine.config.sections import value_of
from atelier.engine.config.train import Train
from atelier.engine.extensions.sites.config.train.link import Link, link_of
from atelier.engine.extensions.sites.linked_checks import check_link, check_phases


def check(layout: Parallel, roles: Mapping[str, Role], train: Train, *, prefix: str, section: str) -> None:
    """Raise ConfigError for settings that are not built between sites. `section`: that of the link."""
    check_link(layout, roles, train, prefix, section)
    check_apart(layout, roles, train, prefix, section)


def check_everybody(
    roles: Mapping[str, Role], train: Train, phases: Mapping[str, Phase], *, section: str = "train"
) -> None:
    """Raise ConfigError if a site has an unknown role, or if phases do not fit. For all roles of a training.
    `section`: the key that has the link.
    """
    check_phases(train, phases, roles)
    link = link_of(train)
    for site in link.sites if link.roles else ():
        for name in link.roles[site]:
            if name not in roles:
                near = nearest(name, roles)
                known = f"there are: {', '.join(roles)}"
                raise ConfigError(
                    f"{section}.link.roles.{site}",
                    f"there is no role {name!r}",
                    f"did you mean {near}?" if near else known,
                )


def check_apart(layout: Parallel, roles: Mapping[str, Role], train: Train, prefix: str, section: str) -> None:
    """Raise ConfigError for a role at no site, a student that needs more than messages of a remote teacher,
    answers with more tokens than the vocabulary, or a layout for which answers are not built. `section`: the
    key that has the link.
    """
    link, where = link_of(train), f"{section}.link"
    if not link.roles:
        return
    for name, role in roles.items():
        if not link.site_of(name):
            raise ConfigError(
                f"{where}.roles",
                f"{name} is at no site",
                f"{where}.roles.{link.site}=[...,{name}], or at another one",
            )
        place = f"{prefix}{name}"
        for key, teacher in role.other_teachers.items():
            if link.is_apart(name, teacher):
                raise ConfigError(
                    f"{place}.objective.{key}.teacher",
                    f"{teacher} is at {link.site_of(teacher)}, and only the role's teacher may be elsewhere",
                    f"{place}.teacher={teacher}, or {teacher} at {link.site_of(name)} in {where}.roles",
                )
        if link.is_apart(name, role.teacher):
            _check_student(place, name, role, roles, link, where)
    _check_circle(roles, link, where)
    crossing = [n for n, role in roles.items() if link.is_apart(n, role.teacher) and role.lesson == ANSWERS]
    if crossing:
        _check_layout(layout, {*crossing, *(roles[name].teacher for name in crossing)})


def _check_circle(roles: Mapping[str, Role], link: Link, where: str) -> None:
    """Refuse sites that would wait for each other's answers to the same step. `where`: the link's place."""
    before: dict[str, set[str]] = {}
    for name, role in roles.items():
        if link.is_apart(name, role.teacher):
            before.setdefault(link.site_of(name), set()).add(link.site_of(role.teacher))
    try:
        TopologicalSorter(before).prepare()
    except CycleError as error:
        circle = " of ".join(error.args[1])
        raise ConfigError(
            f"{where}.roles",
            f"sites learn from each other in a circle: {circle}",
            "put one of their teachers elsewhere",
        ) from None


def _check_student(
    place: str, name: str, role: Role, roles: Mapping[str, Role], link: Link, where: str
) -> None:
    """`where`: the link's place."""
    teacher = role.teacher
    if teacher in roles and roles[teacher].reads_changed:
        raise ConfigError(
            f"{place}.teacher",
            f"{teacher} reads rows that {roles[teacher].teacher} has changed, and {name} has none of them at"
            f" {link.site_of(name)}",
            f"both at one site in {where}.roles",
        )
    _check_compared(place, role, link, where)
    if role.other_teachers:
        key, other = next(iter(role.other_teachers.items()))
        raise ConfigError(
            f"{place}.objective.{key}.teacher",
            f"{other}, beside {teacher} at {link.site_of(teacher)}: such a student can have one teacher only",
            f"leave one out, or all of them at {link.site_of(name)} in {where}.roles",
        )
    above = roles[teacher].teacher if teacher in roles else ""
    if role.attach == "replay" and link.is_apart(teacher, above) and roles[teacher].attach != "replay":
        raise ConfigError(
            f"{place.removesuffix(name)}{teacher}.attach",
            f"{roles[teacher].attach}, and it may train again for {name}: {above} would not send its messages"
            " again",
            f"replay, so that {above} at {link.site_of(above)} trains again with it",
        )
    if role.attach == "frozen":
        raise ConfigError(
            f"{place}.attach",
            f"frozen, which is not built for a teacher at another site ({teacher})",
            f"replay, which trains {teacher} again, or both roles at one site in {where}.roles",
        )
    for each in () if role.lesson != ANSWERS else (name, teacher):
        model = roles[each].model if each in roles else None
        vocab = getattr(model, "vocab", "auto")
        if model is not None and vocab != "auto" and link.top != "all" and link.top > model.ids:
            raise ConfigError(
                f"{where}.top",
                f"{link.top} tokens of each answer, and the vocabulary of {each} has {model.ids}",
                f"{where}.top=all",
            )


def _check_compared(place: str, role: Role, link: Link, where: str) -> None:
    """Refuse objectives that need more than answers."""
    teacher = role.teacher
    at = f"{teacher} at {link.site_of(teacher)}"
    for key, spec in role.objective.items():
        is_sent = type(spec).reads_logits_only or type(spec).lesson != ANSWERS
        if type(spec).needs_teacher and not is_sent:
            raise ConfigError(
                f"{place}.objective.{key}",
                f"compares more than logits, and {at} sends only answers",
                f"an objective of kind logits, or both roles at one site in {where}.roles",
            )
        heat = getattr(spec, "temperature", 1.0)
        if type(spec).reads_logits_only and link.top != "all" and heat != link.temperature:
            raise ConfigError(
                f"{place}.objective.{key}.temperature",
                f"{heat:g}, and the answers of {at} give the mass of all but their {link.top} most likely"
                f" tokens only at temperature {link.temperature:g}",
                f"{where}.temperature={heat:g}, or {where}.top=all",
            )


def _check_layout(layout: Parallel, names: set[str]) -> None:
    """Check that each rank has whole rows and the whole head."""
    for axis in ("pipeline", "context", "tensor"):
        if (size := getattr(layout, axis)) > 1:
            raise ConfigError(
                f"parallel.{axis}",
                f"{size}, and answers between sites are built for whole rows on each rank only",
                f"{axis}=1, and shard or replicate for the other ranks",
            )
    if assigned := value_of(layout, "assignment"):
        raise ConfigError(
            "parallel.assignment",
            f"{assigned}, and answers between sites are in the order of the rows",
            "assignment=rows",
        )
    for name in names & layout.roles.keys():
        raise ConfigError(
            f"parallel.roles.{name}", "has a layout of its own, and its teacher is elsewhere", "leave it out"
        )
