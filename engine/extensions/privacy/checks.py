"""Checks of a private training (config/train/privacy.py): what is not built is refused. Torch-free."""

from collections.abc import Mapping

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
OBJECTIVES = ("lm", "chat")  # of which a row's loss is a function of that row alone


def check(layout: Parallel, roles: Mapping[str, Role], train: Train, *, prefix: str, section: str) -> None:
    """Raise ConfigError for weights, objectives, layouts and settings at which it is not built, or where the
    accountant is missing. `prefix`: where the configuration has the roles.
    """
    privacy = Privacy.of(train)
    if privacy is None:
        return
    for name, role in roles.items():
        if role.moves:
            _check_role(f"{prefix}{name}." if prefix and name else prefix, role)
    _check_train(train)
    _check_layout(layout)
    if privacy.has_epsilon:
        check_library()


def _check_role(place: str, role: Role) -> None:
    if role.trainable.kind not in ADAPTERS:
        raise ConfigError(
            f"{place}trainable.kind",
            f"{role.trainable.kind}, and train.privacy is for adapters: with all weights each row's gradient"
            " has the size of the model",
            f"{place}trainable.kind=lora (or prompt, in atelier finetune), or {OFF}",
        )
    if role.teachers:
        raise ConfigError(
            f"{place}teacher",
            f"{role.teachers[0]}, and train.privacy is not built for what a teacher says of a row",
            f"leave it out, or {OFF}",
        )
    kinds = [spec.kind for spec in role.objective.values()]
    if len(kinds) != 1 or kinds[0] not in OBJECTIVES:
        raise ConfigError(
            f"{place}objective",
            f"is {' and '.join(kinds)}, and train.privacy is built for one of {', '.join(OBJECTIVES)}",
            f"leave the others out, or {OFF}",
        )
    if isinstance(role.model, MixedBlocks) and role.model.num_experts:
        raise ConfigError(
            f"{place}model.num_experts",
            f"{role.model.num_experts}, and experts balance over rows, which train.privacy bounds one by one",
            f"a model without experts, or {OFF}",
        )


def _check_train(train: Train) -> None:
    if train.micro_batch != 1:
        raise ConfigError(
            "train.micro_batch",
            f"{train.micro_batch}, and train.privacy clips a row at a time",
            "train.micro_batch=1, or auto",
        )
    if train.progressive.steps:
        raise ConfigError(
            "train.progressive.steps",
            f"{train.progressive.steps}, and train.privacy has one batch size and one row length",
            "train.progressive.steps=0",
        )
    if train.health.spike != "off" or train.health.rolls_back:
        what = "spike" if train.health.spike != "off" else "nan"
        raise ConfigError(
            f"train.health.{what}",
            f"{getattr(train.health, what)}: what one row may do to the choice of steps is not bounded",
            "train.health.spike=off train.health.nan=skip; a row that is not finite adds nothing",
        )


def _check_layout(layout: Parallel) -> None:
    for axis in ("pipeline", "expert", "context", "tensor"):
        if (size := getattr(layout, axis)) > 1:
            raise ConfigError(
                f"parallel.{axis}",
                f"{size}, and train.privacy is built for whole rows and whole adapters on each rank",
                f"{axis}=1, and shard or replicate for the other ranks",
            )
    given = {"assignment": value_of(layout, "assignment") or "rows", "embedding": layout.embedding}
    for field, usual in (("assignment", "rows"), ("embedding", "gathered")):
        if given[field] != usual:
            raise ConfigError(
                f"parallel.{field}",
                f"{given[field]}, which is not built for train.privacy",
                f"{field}={usual}",
            )
    if layout.roles:
        raise ConfigError(
            "parallel.roles", f"has {', '.join(layout.roles)}, not built for train.privacy", "leave it out"
        )
