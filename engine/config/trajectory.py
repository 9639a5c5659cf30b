"""Which trajectories a training consists of, and what each one's identity is. Pure arithmetic on specs;
torch-free.

A role's training is cut into segments where something starts to depend on where training ends: at its own
schedule's branch step and at its teacher's. What lies before a cut is a trunk that longer runs and other
decays share. A rollback passes over steps before the one that asked for it, so a root that may roll back has
no trunk: what comes later moves what came before.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atelier.engine.config.error import ConfigError, nearest
from atelier.engine.config.record import identify
from atelier.engine.config.role import Role
from atelier.engine.config.train import Train

VERSION = 1


@dataclass(frozen=True)
class Segment:
    """One segment of a role's training: the steps start < s <= end of one trajectory."""

    start: int
    end: int
    identity: dict[str, Any]
    parents: dict[str, str]

    @property
    def fingerprint(self) -> str:
        return identify("trajectory", VERSION, self.identity, self.parents)


@dataclass(frozen=True)
class Feed:
    """What a training reads: its parents by role (`tokens.main`, `tokenizer` ...) and what of it is identity
    (weights, the draw).
    """

    parents: dict[str, str]
    identity: dict[str, Any]


def in_teaching_order(roles: Mapping[str, Role], place: str = "roles") -> list[str]:
    """Role names, every teacher before its students; refuses an unknown teacher and a circle."""
    order: list[str] = []

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            raise ConfigError(
                f"{place}.{name}.teacher",
                f"the roles teach each other in a circle: {' -> '.join([*path, name])}",
            )
        teacher = roles[name].teacher
        if teacher and teacher not in roles:
            near = nearest(teacher, roles)
            raise ConfigError(
                f"{place}.{name}.teacher",
                f"there is no role {teacher!r}",
                f"did you mean {near}?" if near else f"there are: {', '.join(roles)}",
            )
        if teacher:
            visit(teacher, (*path, name))
        if name not in order:
            order.append(name)

    for name in roles:
        visit(name, ())
    return order


def resolve_starts(roles: Mapping[str, Role], train: Train, place: str = "roles") -> dict[str, Role]:
    """The same roles with every `start` and `end` a step: fractions below 1 of all steps, rounded."""
    result = {}
    for name, role in roles.items():
        share = isinstance(role.start, float) and 0 < role.start < 1
        start = round(role.start * train.num_steps) if share else int(role.start)
        if start >= train.num_steps:
            raise ConfigError(
                f"{place}.{name}.start",
                f"step {start} is not before the end of training at step {train.num_steps}",
                "give an earlier step, or a fraction below 1",
            )
        leaves = role.end if role.end >= 1 else round(role.end * train.num_steps)
        if role.end and not start < leaves <= train.num_steps:
            raise ConfigError(
                f"{place}.{name}.end",
                f"step {leaves} is not after its start at {start} and among {train.num_steps} steps",
                f"0 = it stays to the end, step {train.num_steps}",
            )
        result[name] = role.model_copy(update={"start": start, "end": int(leaves)})
    for name, role in result.items():
        teacher = result.get(role.teacher)
        if teacher and role.attach != "frozen" and role.start < teacher.start:
            raise ConfigError(
                f"{place}.{name}.start",
                f"step {role.start}, but its teacher {role.teacher} begins at step {teacher.start}",
                f"{place}.{name}.start={teacher.start} would fit",
            )
        if teacher and role.attach != "frozen" and role.last(train.num_steps) > teacher.last(train.num_steps):
            raise ConfigError(
                f"{place}.{role.teacher}.end",
                f"step {teacher.end}, but its student {name} stays until step {role.last(train.num_steps)}",
                f"{place}.{name}.end={teacher.end} would fit",
            )
    return result


def segments_of(
    roles: Mapping[str, Role], train: Train, feed: Feed, inits: Mapping[str, str]
) -> dict[str, list[Segment]]:
    """The segments of every role, teachers first. `inits` holds fingerprints of the models that roles start
    from.
    """
    result: dict[str, list[Segment]] = {}
    for name in in_teaching_order(roles):
        result[name] = _segments(
            name, roles[name], train, feed, inits.get(name, ""), result.get(roles[name].teacher, [])
        )
    return result


def _segments(
    name: str, role: Role, train: Train, feed: Feed, init: str, teaching: list[Segment]
) -> list[Segment]:
    start, end = int(role.start), role.last(train.num_steps)
    schedule = role.optim.schedule
    is_whole = train.health.rolls_back and not role.teacher
    own = start if is_whole else schedule.branch_step(start, end)
    frozen = role.attach == "frozen"
    cuts = {own} | (set() if frozen else {part.end for part in teaching})
    ends = sorted({cut for cut in cuts if start < cut < end} | {end})
    parts: list[Segment] = []
    for stop in ends:
        begin = parts[-1].end if parts else start
        knows_end = begin >= own
        identity = _identity(name, role, train, knows_end=knows_end) | feed.identity
        parents = dict(feed.parents)
        if init and not parts:
            parents["init"] = init
        if teaching:
            parents["teacher"] = (
                teaching[-1].fingerprint if frozen else _covering(teaching, begin).fingerprint
            )
        if parts:
            parents["trunk"] = parts[-1].fingerprint
            identity["trunk_step"] = begin
        parts.append(Segment(start=begin, end=stop, identity=identity, parents=parents))
    return parts


def _covering(teaching: list[Segment], step: int) -> Segment:
    """The teacher's segment in which the step after `step` lies."""
    return next(part for part in teaching if part.start <= step < part.end)


def _identity(name: str, role: Role, train: Train, *, knows_end: bool) -> dict[str, Any]:
    identity = role.as_identity()
    identity.pop("init", None)
    identity.pop("teacher", None)
    identity.pop("end", None)  # it is the horizon, where that matters
    if identity.get("attach") == "replay":
        identity.pop("attach")
    identity["seed_name"] = role.seed_name or name
    if not knows_end:
        identity["optim"] = identity["optim"] | {"schedule": role.optim.schedule.trunk()}
    else:
        identity["horizon"] = [int(role.start), role.last(train.num_steps)]
    if role.optim.schedule.kind == "constant" and (role.teacher or not train.health.rolls_back):
        identity.pop("horizon", None)
    return identity | train.as_identity()


def origins(prefix: str) -> dict[str, str]:
    """First part of an identity key -> the configuration key that a person would change. `prefix` is e.g.
    'roles.teacher.' or ''.
    """
    role = ("model", "objective", "optim", "trainable", "start", "period", "gate", "attach", "seed_name")
    train = ("global_batch", "sequence", "precision", "seed", "progressive", "health")
    return (
        {key: f"{prefix}{key}" for key in role}
        | {key: f"train.{key}" for key in train}
        | {"horizon": "train.steps", "trunk_step": "train.steps"}
    )
