"""`-m`: one run a point, one after another; students that differ only in themselves learn from one teacher
in one gang.
"""

from typing import Any

from engine.spec.base import canonical
from engine.spec.error import AtelierError, ConfigError
from flows.cli.compose import Frozen, compose

SEPARATOR = "~"


def points_of(overrides: list[str]) -> list[list[str]]:
    """The override lists of all points: the product of every `a=1,2` and range, as Hydra's basic sweeper
    cuts it.
    """
    from hydra._internal.core_plugins.basic_sweeper import (
        BasicSweeper,  # Hydra only where it is needed: 0.15 s
    )
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        parsed = OverridesParser.create().parse_overrides(overrides)
        batches = BasicSweeper.split_arguments(parsed, max_batch_size=None)
    except HydraException as error:
        raise ConfigError(
            "sweep", str(error).splitlines()[0], "write e.g. train.seed=1,2,3 or optim.lr=choice(1e-3,2e-3)"
        ) from None
    points = [list(point) for batch in batches for point in batch]
    if not points:
        raise ConfigError("sweep", "there is no point in it", "give at least one value to every key")
    return points


def compose_points(flow: str, overrides: list[str]) -> list[Frozen]:
    """All points, validated before the first one runs; each knows the students of the others that can ride
    in its gang.
    """
    frozen = []
    for number, point in enumerate(points_of(overrides)):
        try:
            frozen.append(compose(flow, point))
        except AtelierError as error:
            raise ConfigError(f"point {number} ({' '.join(point)})", str(error)) from None
    return [with_companions(one, frozen) for one in frozen]


def with_companions(point: Frozen, others: list[Frozen]) -> Frozen:
    """`point` with the students of all points that differ from it only below their students."""
    roles = point.call().get("roles")
    if not roles:
        return point
    known = {canonical(_named(name, role)) for name, role in roles.items()}
    companions: dict[str, Any] = {}
    for other in others:
        if _frame(other) != _frame(point):
            continue
        for name, role in other.call()["roles"].items():
            teaches = roles.get(role.teacher)
            mark = canonical(_named(name, role))
            if teaches is None or teaches.teacher or mark in known:
                continue
            known.add(mark)
            key = f"{name}{SEPARATOR}{len(companions) + 1}"
            companions[key] = role.model_copy(update={"seed_name": role.seed_name or name})
    return Frozen(**{**vars(point), "companions": companions})


def _named(name: str, role: Any) -> dict[str, Any]:
    return role.model_dump(mode="json") | {"seed_name": role.seed_name or name}


def _frame(point: Frozen) -> bytes:
    """Everything of a point but its students."""
    roles = {name: role for name, role in point.document.get("roles", {}).items() if not role["teacher"]}
    return canonical(point.document | {"roles": roles, "companions": {}})
