"""The trajectories of a training and their identities. Pure arithmetic on specs; torch-free.

A role's training is cut into segments where it starts to depend on the length of training (the branch steps
of its and its teacher's schedules) and where the shares of its data change. Steps before a cut are a trunk,
shared by longer runs, other decays and other shares. A root that may roll back has no trunk: a rollback
changes steps before the bad one.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from atelier.engine.config.base import Json
from atelier.engine.config.error import ConfigError, nearest
from atelier.engine.config.extensions import kinds_of
from atelier.engine.config.record import identify
from atelier.engine.config.role import Role
from atelier.engine.config.sections import sections_of
from atelier.engine.config.train import Train

VERSION = 1
PADDING = 2  # version of the handling of padding logits: not compared
LEAD = 2  # version of the teacher's lead: measured after warm-up


@dataclass(frozen=True)
class Segment:
    """One segment of a role's training: steps start < s <= end of one trajectory."""

    start: int
    end: int
    identity: dict[str, Json]
    parents: dict[str, str]

    @property
    def fingerprint(self) -> str:
        return identify("trajectory", VERSION, self.identity, self.parents)


@dataclass(frozen=True)
class Feed:
    """The data of a training: parents by role (`tokens.main`, `tokenizer` ...) and its identity (weights, the
    draw). `later`: the data from a step on, where shares change.
    """

    parents: dict[str, str]
    identity: dict[str, Json]
    later: Mapping[int, "Feed"] = dataclasses.field(default_factory=dict)

    def at(self, step: int) -> "Feed":
        """The data up to the step after `step`."""
        begun = max((begin for begin in self.later if begin <= step), default=None)
        return self if begun is None else self.later[begun]


def in_teaching_order(roles: Mapping[str, Role], place: str = "roles") -> list[str]:
    """Role names, teachers before students. Raises ConfigError for an unknown teacher or a cycle."""
    order: list[str] = []

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            raise ConfigError(
                f"{place}.{name}.teacher",
                f"teachers form a cycle: {' -> '.join([*path, name])}",
            )
        others = {f"objective.{key}.teacher": other for key, other in roles[name].other_teachers.items()}
        for field, teacher in {"teacher": roles[name].teacher, **others}.items():
            if teacher and teacher not in roles:
                near = nearest(teacher, roles)
                raise ConfigError(
                    f"{place}.{name}.{field}",
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
    """The same roles with every `start` and `end` as a step; fractions of all steps are rounded.

    Raises ConfigError if a step is outside the training, or if a teacher starts after or ends before its
    student.
    """
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
                f"step {leaves} is not between its start at {start} and the end at {train.num_steps}",
                f"0 = it ends with the training, at step {train.num_steps}",
            )
        result[name] = role.model_copy(update={"start": start, "end": int(leaves)})
    for name, role in result.items():
        teacher = result.get(role.teacher)
        if teacher and role.attach != "frozen" and role.start < teacher.start:
            raise ConfigError(
                f"{place}.{name}.start",
                f"step {role.start}, but its teacher {role.teacher} starts at step {teacher.start}",
                f"{place}.{name}.start={teacher.start} would fit",
            )
        if teacher and role.attach != "frozen" and role.last(train.num_steps) > teacher.last(train.num_steps):
            raise ConfigError(
                f"{place}.{role.teacher}.end",
                f"step {teacher.end}, but its student {name} ends at step {role.last(train.num_steps)}",
                f"{place}.{name}.end={teacher.end} would fit",
            )
    return result


def segments_of(
    roles: Mapping[str, Role], train: Train, feed: Feed, inits: Mapping[str, str]
) -> dict[str, list[Segment]]:
    """The segments of every role, teachers first; none for a finished model. `inits`: fingerprints of models
    that roles start from or are.
    """
    result: dict[str, list[Segment]] = {}
    for name in in_teaching_order(roles):
        role = roles[name]
        if not role.moves:
            result[name] = []
            continue
        teaching = result.get(role.teacher, [])
        model = inits.get(role.teacher, "") if role.teacher and not teaching else ""
        others = {f"teacher.{key}": inits[other] for key, other in role.other_teachers.items()}
        result[name] = _segments(name, role, train, feed, others, inits.get(name, ""), teaching, model)
    return result


def _segments(
    name: str,
    role: Role,
    train: Train,
    feed: Feed,
    others: Mapping[str, str],
    init: str,
    teaching: list[Segment],
    model: str,
) -> list[Segment]:
    """`others`: finished teachers besides its own; `model`: its own teacher, if finished."""
    start, end = int(role.start), role.last(train.num_steps)
    is_whole = train.health.rolls_back and not role.teacher
    own = start if is_whole else _branch_step(role, train, start, end)
    frozen = role.attach == "frozen"
    cuts = {own} | (set() if frozen else {segment.end for segment in teaching})
    cuts |= set() if is_whole else set(feed.later)
    ends = sorted({cut for cut in cuts if start < cut < end} | {end})
    segments: list[Segment] = []
    for stop in ends:
        begin = segments[-1].end if segments else start
        knows_end = begin >= own
        data = feed.at(end - 1 if is_whole else begin)
        identity = _identity(name, role, train, knows_end=knows_end) | data.identity
        parents = {**data.parents, **others}
        if init and not segments:
            parents["init"] = init
        if teaching:
            parents["teacher"] = (
                teaching[-1].fingerprint if frozen else _covering(teaching, begin).fingerprint
            )
        if model:
            identity.pop("attach", None)
            parents["teacher"] = model
        if segments:
            parents["trunk"] = segments[-1].fingerprint
            identity["trunk_step"] = begin
        segments.append(Segment(start=begin, end=stop, identity=identity, parents=parents))
    return segments


def _branch_step(role: Role, train: Train, start: int, end: int) -> int:
    """The first step whose learning rate, objectives' weights or outer steps depend on `end`; `end` if none
    does.
    """
    schedules = (role.optim.schedule, *(spec.schedule for spec in role.objective.values()))
    return min(each.branch_step(start, end) for each in (*schedules, *sections_of(train).values()))


def _covering(teaching: list[Segment], step: int) -> Segment:
    """The teacher's segment with the step after `step`."""
    return next(segment for segment in teaching if segment.start <= step < segment.end)


def _identity(name: str, role: Role, train: Train, *, knows_end: bool) -> dict[str, Json]:
    identity = role.as_identity()
    identity.pop("init", None)
    identity.pop("teacher", None)
    identity.pop("end", None)  # part of `horizon` below, if relevant
    if identity.get("attach") == "replay":
        identity.pop("attach")
    if role.gate != "open":
        identity["gate"] = {"nats": role.gate, "version": LEAD}
    if any(spec.schedule.follows_lead for spec in role.objective.values()):
        identity["lead"] = LEAD
    if getattr(role.model, "vocab_padding", 0) and any(
        type(spec).reads_logits_only for spec in role.objective.values()
    ):
        identity["padding"] = PADDING
    identity["seed_name"] = role.seed_name or name
    start, end = int(role.start), role.last(train.num_steps)
    if not knows_end:
        identity["optim"] = role.optim.as_identity() | {"schedule": role.optim.schedule.trunk()}
        identity["objective"] = {
            key: spec.trunk() if spec.schedule.branch_step(start, end) < end else spec.as_identity()
            for key, spec in role.objective.items()
        }
    elif _branch_step(role, train, start, end) < end or not (role.teacher or not train.health.rolls_back):
        identity["horizon"] = [start, end]
    identity |= train.as_identity()
    for key, section in sections_of(train).items():
        own = section.identity_for(name, role.teacher, role.lesson)
        if own is not None:
            identity.pop(key, None)
            identity |= own
    return identity


def origins(prefix: str, train: Train, section: str = "train") -> dict[str, str]:
    """First part of an identity key -> configuration key to change. `prefix`: 'roles.teacher.' or ''.
    `section`: the section with the training's length and own extension keys; `train` has the shared settings.
    """
    own = kinds_of(f"config/{section}")
    role = ("model", "objective", "optim", "trainable", "start", "period", "gate", "attach", "seed_name")
    shared = ("global_batch", "precision", "seed", "progressive", "health")
    return (
        {key: f"{prefix}{key}" for key in role}
        | {key: f"train.{key}" for key in (*shared, *kinds_of("config/train"))}
        | {key: f"{section}.{key}" for key in own}
        | {
            key: f"{section if name in own else 'train'}.{name}.{field}"
            for name, value in sections_of(train).items()
            for key, field in value.ORIGINS.items()
        }
        | {
            "sequence": f"{section}.sequence",
            "horizon": f"{section}.steps",
            "trunk_step": f"{section}.steps",
            "lead": f"{prefix}objective",
            "padding": f"{prefix}objective",
        }
    )
