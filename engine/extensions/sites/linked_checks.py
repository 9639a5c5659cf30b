"""Checks of a training in which several sites train one model. Torch-free."""

from collections.abc import Mapping

from atelier.engine.config.error import ConfigError
from atelier.engine.config.experts import MixedBlocks
from atelier.engine.config.mixture import Phase
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.role import Role
from atelier.engine.config.sections import keys_with, sections_of, value_of
from atelier.engine.config.train import Train
from atelier.engine.extensions.sites.config.train.link import link_of


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
