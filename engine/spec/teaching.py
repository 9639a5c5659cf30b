"""Whether a teacher can teach a student what its objectives ask for: refused before a process starts."""

from collections.abc import Mapping

from engine.spec.error import ConfigError
from engine.spec.objective.attention import Attention
from engine.spec.role import Role


def check_teaching(roles: Mapping[str, Role], *, prefix: str = "roles.") -> None:
    """ConfigError with place, numbers and what would fit. `prefix` as in `check_layout`."""
    for name, role in roles.items():
        for key, objective in role.objective.items():
            if role.teacher in roles and isinstance(objective, Attention):
                _check_heads(
                    f"{prefix}{name}.objective.{key}.relation_heads", objective, role, roles[role.teacher]
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
            near = max(
                r for r in range(1, heads + 1) if role.model.hidden % r == 0 and teacher.model.hidden % r == 0
            )
            raise ConfigError(
                place, f"{heads} does not divide {whose} width {model.hidden}", f"{near} would fit"
            )
