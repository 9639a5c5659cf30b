"""Checks of a training in which several sites train one model. Torch-free."""

from collections.abc import Mapping

from atelier.engine.config.error import ConfigError
from atelier.engine.config.experts import MixedBlocks
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.role import Role
from atelier.engine.config.train import Train


def check_link(layout: Parallel, roles: Mapping[str, Role], train: Train, prefix: str, section: str) -> None:
    """Raise ConfigError for a training of several sites that would not end with an outer step, whose sites
    could not go on after a kill, or would learn from other steps of a teacher, or whose model has more than
    the weights that they exchange.
    """
    every, trained = train.link.every, [name for name, role in roles.items() if role.moves]
    if train.link.is_elastic and len(trained) > 1:
        raise ConfigError(
            "train.link.membership",
            f"an elastic one is built for one role, and this training has {', '.join(trained)}",
            "kind=strict",
        )
    if train.link.rounds and len(trained) > 1:
        raise ConfigError(
            "train.link.rounds",
            f"the rounds of one model, and this training has {', '.join(trained)}",
            "one role at a time, or train.link.codec instead of train.link.choose",
        )
    if (train.link.is_linked or train.link.roles) and layout.assignment == "measured":
        raise ConfigError(
            "parallel.assignment",
            "measured, and a site that goes on after a kill has to send the same bits again",
            "assignment=static, with parallel.speed_log if they differ",
        )
    for name, role in roles.items() if train.link.is_linked else ():
        steps = role.last(train.num_steps) - int(role.start)
        if role.moves and steps % every:
            raise ConfigError(
                f"{section}.link.every",
                f"{every} does not divide the {steps} steps of {prefix}{name}: it would end apart",
                _other_rounds(train, section, steps),
            )
        if role.gate != "open" and len(train.link.rows) > 1:
            raise ConfigError(
                f"{prefix}{name}.gate",
                f"{role.gate}, which each site would open by the losses of its own rows",
                f"gate=open, with {prefix}{name}.start for a later step",
            )
        if role.moves:
            _check_exchanged(layout, role, f"{prefix}{name}.model" if prefix else "model")


def _other_rounds(train: Train, section: str, steps: int) -> str:
    """The longest rounds, or the fewest steps above, of which a training has a whole number."""
    link = train.link
    fits = (
        every
        for every in range(link.every, max(link.delay, link.every // 2), -1)
        if not (steps % every or every % link.fragments)
    )
    if every := next(fits, 0):
        return f"{section}.link.every={every} would fit"
    return f"{section}.steps={-(-train.num_steps // link.every) * link.every} would fit"


def _check_exchanged(layout: Parallel, role: Role, model: str) -> None:
    """Check that what changes of a mixture of experts is its weights, in memory. `model`: its place."""
    spec = role.model
    if not isinstance(spec, MixedBlocks) or not spec.num_experts:
        return
    router = spec.experts.router
    if router.buffers:
        field = "balance" if hasattr(router, "balance") else "kind"
        raise ConfigError(
            f"{model}.experts.router.{field}",
            f"{getattr(router, field)}, whose {' and '.join(router.buffers)} no gradient moves, and sites"
            " exchange what gradients have moved",
            "balance=row, or none" if field == "balance" else "another router",
        )
    if layout.tiers.experts != "device":
        raise ConfigError(
            "parallel.tiers.experts",
            f"{layout.tiers.experts}, and sites do not exchange the experts of {model} from there",
            "experts=device",
        )
