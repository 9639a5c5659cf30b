"""Whether models can learn what their objectives ask for, and teachers teach it: refused before a process
starts.
"""

from collections.abc import Mapping
from math import gcd

from atelier.engine.spec.divisors import largest_divisor
from atelier.engine.spec.error import ConfigError
from atelier.engine.spec.kinds import ObjectiveSpec
from atelier.engine.spec.objective.attention import Attention
from atelier.engine.spec.objective.control import Control
from atelier.engine.spec.role import Role


def check_teaching(roles: Mapping[str, Role], *, prefix: str = "roles.") -> None:
    """ConfigError with place, numbers and what would fit. `prefix` as in `check_layout`."""
    for name, role in roles.items():
        for key, objective in role.objective.items():
            if isinstance(objective, Control):
                _check_prompts(f"{prefix}{name}.model.prompts", objective, role)
            if type(objective).compares == "classes":
                _check_classes(f"{prefix}{name}.model.classes", objective, role)
            if role.teacher in roles and isinstance(objective, Attention):
                _check_heads(
                    f"{prefix}{name}.objective.{key}.relation_heads", objective, role, roles[role.teacher]
                )


def _check_prompts(place: str, objective: Control, role: Role) -> None:
    number, has = objective.num_prompts, getattr(role.model, "prompts", None)
    if has != number:
        way_out = "model=ernie_tiny" if has is None else f"{place}={number}"
        raise ConfigError(
            place,
            f"{has or 'none'}, but genres of {objective.prompt_length} need {number}",
            way_out,
        )


def _check_classes(place: str, objective: ObjectiveSpec, role: Role) -> None:
    number = objective.num_classes
    heads: dict[str, int] = getattr(role.model, "classes", {})
    if heads.get(objective.kind) != number:
        known = ", ".join(f"{name}: {size}" for name, size in heads.items()) or "none"
        way_out = (
            f"+{place}.{objective.kind}={number}" if hasattr(role.model, "classes") else "model=ernie_tiny"
        )
        raise ConfigError(
            place, f"objective {objective.kind} needs a head of {number} classes; heads: {known}", way_out
        )


def _check_heads(place: str, objective: Attention, role: Role, teacher: Role) -> None:
    heads = objective.relation_heads
    if heads == "auto":
        heads = getattr(role.model, "num_heads", 0)
    if not heads or not hasattr(teacher.model, "num_heads"):
        kind = teacher.model.kind if heads else role.model.kind
        raise ConfigError(
            place, f"a model of kind {kind} shows no attention", "compare logits or hidden states"
        )
    for whose, model in (("the student's", role.model), (f"{role.teacher}'s", teacher.model)):
        if model.hidden % heads:
            near = largest_divisor(gcd(role.model.hidden, teacher.model.hidden), heads)
            raise ConfigError(
                place, f"{heads} does not divide {whose} width {model.hidden}", f"{near} would fit"
            )
