"""Checks of a training whose roles live at different sites, or of one model at several sites. Torch-free."""

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter

from atelier.engine.config.base import ANSWERS
from atelier.engine.config.error import ConfigError, nearest
from atelier.engine.config.experts import MixedBlocks
from atelier.engine.config.mixture import Phase
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.role import Role
from atelier.engine.config.sections import keys_with, sections_of, value_of
from atelier.engine.config.train import Train
from atelier.engine.extensions.sites.config.train.link import Link, link_of


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


def check_link(layout: Parallel, roles: Mapping[str, Role], train: Train, prefix: str, section: str) -> None:
    """Raise ConfigError for a training of several sites that would not end with an outer step, could not
    continue after a kill, would open gates at different steps, or changes more than the exchanged weights.
    """
    every, trained = link_of(train).every, [name for name, role in roles.items() if role.moves]
    if link_of(train).is_elastic and len(trained) > 1:
        raise ConfigError(
            "train.link.membership",
            f"an elastic one is built for one role, and this training has {', '.join(trained)}",
            "kind=strict",
        )
    taking = keys_with(train, "takes_gradients")
    if link_of(train).is_elastic and taking:
        raise ConfigError(
            "train.link.membership.kind",
            f"elastic, and train.{taking[0]} is not built for rows that are assigned again",
            f"train.link.membership.kind=strict, or train.{taking[0]}.{sections_of(train)[taking[0]].OFF}",
        )
    if link_of(train).rounds and len(trained) > 1:
        raise ConfigError(
            "train.link.rounds",
            f"the rounds of one model, and this training has {', '.join(trained)}",
            "one role at a time, or train.link.codec instead of train.link.choose",
        )
    if link_of(train).is_on and value_of(layout, "assignment") == "measured":
        raise ConfigError(
            "parallel.assignment",
            "measured, and a site that continues after a kill must send the same bits again",
            "assignment=static, with parallel.speed_log if they differ",
        )
    for name, role in roles.items() if link_of(train).is_linked else ():
        steps = role.last(train.num_steps) - int(role.start)
        if role.moves and steps % every:
            raise ConfigError(
                f"{section}.link.every",
                f"{every} does not divide the {steps} steps of {prefix}{name}: the sites would end with"
                " different weights",
                _other_rounds(train, section, steps),
            )
        if role.gate != "open" and len(link_of(train).rows) > 1:
            raise ConfigError(
                f"{prefix}{name}.gate",
                f"{role.gate}, which each site would open by the losses of its own rows",
                f"gate=open, with {prefix}{name}.start for a later step",
            )
        if role.moves:
            _check_exchanged(layout, role, f"{prefix}{name}.model" if prefix else "model")


def _other_rounds(train: Train, section: str, steps: int) -> str:
    """A hint: the longest shorter round that divides the steps, or the next number of steps that fits."""
    link = link_of(train)
    fits = (
        every
        for every in range(link.every, max(link.delay, link.every // 2), -1)
        if not (steps % every or every % link.fragments)
    )
    if every := next(fits, 0):
        return f"{section}.link.every={every} would fit"
    return f"{section}.steps={-(-train.num_steps // link.every) * link.every} would fit"


def _check_exchanged(layout: Parallel, role: Role, model: str) -> None:
    """Check that a mixture of experts changes only weights, and has them in memory. `model`: its key."""
    spec = role.model
    if not isinstance(spec, MixedBlocks) or not spec.num_experts:
        return
    router = spec.experts.router
    if router.buffers:
        field = "balance" if hasattr(router, "balance") else "kind"
        raise ConfigError(
            f"{model}.experts.router.{field}",
            f"{getattr(router, field)}, whose {' and '.join(router.buffers)} no gradient changes, and sites"
            " exchange only weights that gradients change",
            "balance=row, or none" if field == "balance" else "another router",
        )
    if value_of(layout, "tiers.experts") == "disk":
        raise ConfigError(
            "parallel.tiers.experts",
            f"disk, and sites cannot exchange the experts of {model} on disk",
            "experts=device",
        )


def check_phases(train: Train, phases: Mapping[str, Phase], roles: Mapping[str, Role]) -> None:
    """Raise ConfigError for a phase of an elastic membership that begins within a round, whose samples are
    not read in order, or for phases of a role that begins later.
    """
    link = link_of(train)
    every = link.every
    starts = {name: int(role.start) for name, role in roles.items() if role.moves}
    for name, phase in phases.items() if link.is_elastic else ():
        place, begin = f"data.phases.{name}.begin", phase.first_step(train.num_steps)
        if late := [role for role, start in starts.items() if start]:
            raise ConfigError(
                place,
                f"step {begin}, and in an elastic membership {late[0]}, which begins at step"
                f" {starts[late[0]]}, reads the first sample at that step",
                "start=0, or train.link.membership.kind=strict",
            )
        before = begin - begin % every
        if begin != before:
            fitting = [f"step {step}" for step in (before, before + every) if 0 < step < train.num_steps]
            raise ConfigError(
                place,
                f"step {begin} is within a round of {every} steps, whose samples an elastic membership reads"
                " in another order",
                ", or ".join(fitting) or "train.link.membership.kind=strict",
            )
