"""Check private trainings (config/train/privacy.py); unsupported settings are refused. Torch-free."""

from collections.abc import Mapping

from atelier.engine.config.divisors import largest_divisor
from atelier.engine.config.error import ConfigError
from atelier.engine.config.experts import MixedBlocks
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.role import Role
from atelier.engine.config.sections import value_of
from atelier.engine.config.train import Train
from atelier.engine.extensions.privacy.config.train.privacy import Privacy
from atelier.engine.extensions.privacy.epsilon import check_library

OFF = "train.privacy.kind=none"
ADAPTERS = ("lora", "prompt")
OBJECTIVES = ("lm", "chat")  # objectives in which a row's loss depends on that row alone


def check(layout: Parallel, roles: Mapping[str, Role], train: Train, *, prefix: str, section: str) -> None:
    """Raise ConfigError for unsupported weights, objectives, layouts and settings, or if the accountant is
    missing. `prefix`: the roles' place in the configuration.
    """
    privacy = Privacy.of(train)
    if privacy is None:
        return
    for name, role in roles.items():
        if role.moves:
            _check_role(f"{prefix}{name}." if prefix and name else prefix, role)
    _check_train(train)
    _check_layout(layout, train.here().global_batch)
    if privacy.has_epsilon:
        check_library()


def _check_role(place: str, role: Role) -> None:
    if role.trainable.kind not in ADAPTERS:
        raise ConfigError(
            f"{place}trainable.kind",
            f"{role.trainable.kind}, but train.privacy supports only adapters: with all weights each row's"
            " gradient is as large as the model",
            f"{place}trainable.kind=lora (or prompt, in atelier finetune), or {OFF}",
        )
    if role.teachers:
        raise ConfigError(
            f"{place}teacher",
            f"{role.teachers[0]}, but train.privacy does not support teachers",
            f"leave it out, or {OFF}",
        )
    kinds = [spec.kind for spec in role.objective.values()]
    if len(kinds) != 1 or kinds[0] not in OBJECTIVES:
        raise ConfigError(
            f"{place}objective",
            f"is {' and '.join(kinds)}, but train.privacy supports only one of {', '.join(OBJECTIVES)}",
            f"leave the others out, or {OFF}",
        )
    if isinstance(role.model, MixedBlocks) and role.model.num_experts:
        raise ConfigError(
            f"{place}model.num_experts",
            f"{role.model.num_experts}, but balancing experts couples the rows of a batch, and train.privacy"
            " clips the gradient of each row by itself",
            f"use a model without experts, or {OFF}",
        )


def _check_train(train: Train) -> None:
    if train.micro_batch != 1:
        raise ConfigError(
            "train.micro_batch",
            f"{train.micro_batch}, but train.privacy clips one row at a time",
            "train.micro_batch=1, or auto",
        )
    if train.progressive.grows:
        steps = train.progressive.steps
        raise ConfigError(
            "train.progressive.steps" if steps else "train.progressive.rampup",
            f"{steps or 'is on'}, but train.privacy needs a fixed batch size and row length",
            "train.progressive.steps=0" if steps else "leave it out",
        )
    if train.health.spike != "off" or train.health.rolls_back:
        what = "spike" if train.health.spike != "off" else "nan"
        raise ConfigError(
            f"train.health.{what}",
            f"{getattr(train.health, what)}: it depends on single rows and breaks the privacy bound",
            "train.health.spike=off train.health.nan=skip; a row that is not finite adds nothing",
        )


def _check_layout(layout: Parallel, batch: int) -> None:
    data = layout.axes.data
    if batch % data:
        raise ConfigError(
            "parallel",
            f"{data} data-parallel ranks do not divide the {batch} rows of a step, and train.privacy takes"
            " no rows of padding",
            f"{largest_divisor(batch, data)} ranks would fit",
        )
    for axis in ("pipeline", "expert", "context", "tensor"):
        if (size := getattr(layout, axis)) > 1:
            raise ConfigError(
                f"parallel.{axis}",
                f"{size}, but train.privacy needs whole rows and whole adapters on each rank",
                f"use {axis}=1, and shard or replicate for the other ranks",
            )
    given = {"assignment": value_of(layout, "assignment") or "rows", "embedding": layout.embedding}
    for field, usual in (("assignment", "rows"), ("embedding", "gathered")):
        if given[field] != usual:
            raise ConfigError(
                f"parallel.{field}",
                f"{given[field]} is not supported with train.privacy",
                f"{field}={usual}",
            )
    if layout.roles:
        raise ConfigError(
            "parallel.roles",
            f"has {', '.join(layout.roles)}, not supported with train.privacy",
            "leave it out",
        )
