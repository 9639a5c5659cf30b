"""Decide which roles to train, replay or load frozen, and from which step. Refuse students whose start step
has passed, and trainings that other code started, because a mixture of two versions is the result of neither.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from atelier.engine.config.base import Spec
from atelier.engine.config.error import AtelierError, ConfigError
from atelier.engine.config.lesson_state import state_of
from atelier.engine.config.record import Record
from atelier.engine.config.role import Role
from atelier.engine.config.run_file import Member
from atelier.engine.config.trajectory import Segment, in_teaching_order
from atelier.engine.io.weight_files import weights_digest
from atelier.infra.code.code_change import Map, changed, digest_of, files_of
from atelier.infra.code.provenance import engine_digest
from atelier.infra.store.store import Store
from atelier.infra.store.trajectory import (
    TrajectoryState,
    code_at,
    read_code,
    segment_addresses,
    steps_kept,
    trajectory_state,
)

MOST = 6  # changed files that a message names


class Resume(Spec):
    """Handling of trainings that other code started: continue them with the current code (`accept_code`), or
    restart them (`fresh`: names of their tasks).
    """

    accept_code: bool = False
    fresh: tuple[str, ...] = ()


@dataclass(frozen=True)
class OtherCode:
    """Refusal of a training that was started by other code."""

    node: str
    role: str
    step: int
    changes: tuple[str, ...]  # files, with the functions that differ; empty = its code is unknown

    def __str__(self) -> str:
        more = f" and {len(self.changes) - MOST} more" if len(self.changes) > MOST else ""
        what = f"changed since: {', '.join(self.changes[:MOST])}{more}"
        if not self.changes:
            what = "its code was not recorded"
        return (
            f"{self.node}: the training of {self.role} stopped at step {self.step} with other code ({what});"
            f" --accept-code continues with the present code, --fresh {self.node} restarts it"
        )


def other_code(
    node: str, role: str, segments: list[Segment], code: Map, store: Store, finished: Record | None
) -> OtherCode | None:
    """The refusal to continue the training of `role`, or to replay a `finished` one; None = allowed.

    The newest readable checkpoint decides, because a training would continue from it.
    """
    if finished is not None and (made := finished.provenance.get("code")):
        differing = changed(made, files_of(code)) if isinstance(made, dict) else []
        return OtherCode(node, role, segments[-1].end, tuple(differing)) if differing else None
    step, digest, changes = _code_of(segments, code, store)
    return OtherCode(node, role, step, changes) if changes or not digest else None


def _code_of(segments: list[Segment], code: Map, store: Store) -> tuple[int, str, tuple[str, ...]]:
    """Step of the newest readable checkpoint, digest of its code ('' = not recorded) and the files in which
    that differs from `code`; step 0 and the digest of `code` without checkpoints beyond the initial weights.
    """
    own = digest_of(code)
    for step in sorted(trajectory_state(store, segments).steps, reverse=True):
        if step <= segments[0].start:
            break  # nothing is trained yet
        segment = next(one for one in segments if one.start < step <= one.end)
        address = store.address("trajectory", segment.fingerprint)
        digest = code_at(address, step)
        if digest is not None:
            if digest in ("", own):
                return step, digest, ()
            # a branch may have continued under the digest of its trunk, which has the map
            places = [address, *(store.address("trajectory", one.fingerprint) for one in reversed(segments))]
            found = next(filter(None, (read_code(place, digest) for place in places)), {})
            return step, digest, tuple(changed(found, code))
    return 0, own, ()


def made_by_other(record: Record, code: Map | None) -> str:
    """Changes in the code that `record` depends on since it was made, as text; '' = none."""
    made = record.provenance.get("code")
    if code is None:
        return ""
    if not isinstance(made, dict):  # older record: only a digest of the whole engine
        engine = record.provenance.get("engine", engine_digest())
        return "" if engine == engine_digest() else "the engine's sources have changed"
    differing = changed(made, files_of(code))
    more = f" and {len(differing) - MOST} more" if len(differing) > MOST else ""
    return f"changed code: {', '.join(differing[:MOST])}{more}" if differing else ""


Mode = Literal["train", "replay", "frozen"]


@dataclass(frozen=True)
class Situation:
    """State of one role in the store, and its mode in the gang to start."""

    segments: list[Segment]
    standing: TrajectoryState
    is_finished: bool
    mode: Mode = "train"
    has_steps: bool = False  # it trains in the gang

    @property
    def is_begun(self) -> bool:
        return self.standing.newest is not None

    @property
    def has_trained(self) -> bool:
        """True when its last checkpoint exists and only its model has to be written."""
        return self.standing.newest == self.standing.end


@dataclass(frozen=True)
class Refusal:
    """Refusal of a student whose start step has passed, with the costs of the ways out in teacher steps.
    `delay`: steps by which it is behind its teacher; with a delay it cannot learn from a finished teacher.
    """

    student: str
    teacher: str
    start: int
    teacher_at: int
    replay_from: int
    end: int
    delay: int = 0

    def __str__(self) -> str:
        behind = f"whose lessons its first step, {self.start}, needs" if self.delay else "its start"
        replay = f"roles.{self.student}.attach=replay"
        text = (
            f"roles.{self.student}: its teacher is already at step {self.teacher_at}, past step"
            f" {self.start - self.delay}, {behind}; attach=replay trains {self.teacher} again from step"
            f" {self.replay_from} ({self.end - self.replay_from} steps of the teacher)"
        )
        if self.delay:
            return f"{text}; set {replay}"
        return (
            f"{text}, attach=frozen learns from the finished {self.teacher} ({self.end - self.start} forward"
            f" passes, another identity); set {replay} or roles.{self.student}.attach=frozen"
        )


@dataclass(frozen=True)
class ResumePlan:
    """The gang to start: its roles, teachers first (empty = nothing to do), and refusals."""

    situations: dict[str, Situation]
    from_step: int
    asked: Mapping[str, int] = field(default_factory=dict)  # of `resume_plan`
    refusals: tuple[Refusal | OtherCode, ...] = ()

    @property
    def refused(self) -> set[str]:
        """Roles that cannot be trained."""
        return {each.student if isinstance(each, Refusal) else each.role for each in self.refusals}


def resume_plan(
    roles: Mapping[str, Role],
    segments: Mapping[str, list[Segment]],
    models: Mapping[str, tuple[str, str]],
    store: Store,
    *,
    node: str,
    maps: Mapping[str, Map],
    resume: Resume,
    finished: Container[str] = (),
    asked: Mapping[str, int] | None = None,
) -> ResumePlan:
    """Plan the gang of `roles` from trajectories and models (kind, fingerprint) in the store and the current
    code (`maps`). `resume`: handling of trainings that other code started; `finished`: roles whose models
    exist when the gang starts; `asked`: roles that other sites still need, with the step from which they need
    them.
    """
    asked = asked or {}
    records = {name: store.find(*models[name]) for name in roles}
    is_fresh = node in resume.fresh
    found = {
        name: Situation(
            segments=segments[name],
            standing=trajectory_state(
                store, [] if is_fresh and records[name] is None else segments[name], segments[name]
            ),
            is_finished=records[name] is not None or name in finished,
        )
        for name in roles
    }
    chosen = _chosen(roles, found, asked)
    refusals: list[Refusal | OtherCode | None] = [_refusal(name, roles, found, store) for name in chosen]
    if not resume.accept_code:
        refusals += [
            other_code(node, name, segments[name], maps[name], store, records[name])
            for name, one in chosen.items()
            if one.mode == "replay" or (one.mode == "train" and not is_fresh and one.has_steps)
        ]
    return ResumePlan(
        situations=chosen,
        from_step=_resume_step(roles, chosen, store, asked),
        asked=asked,
        refusals=tuple(filter(None, refusals)),
    )


def _chosen(
    roles: Mapping[str, Role], found: Mapping[str, Situation], asked: Mapping[str, int]
) -> dict[str, Situation]:
    """The roles of the gang, teachers first: unfinished ones, those that other sites need, and the teachers
    of all roles that take steps. Such a teacher trains too, unless it is finished and its students learn from
    the frozen model. A role whose last checkpoint exists takes no steps for itself.
    """
    needed = {name for name in roles if not found[name].is_finished or name in asked}
    trained = {name for name in needed if found[name].has_trained}
    moving = {
        name
        for name in needed
        if name not in trained or asked.get(name, found[name].standing.end) < found[name].standing.end
    }
    waiting = [*moving]
    while waiting:
        role = roles[waiting.pop()]
        needed |= {*role.teachers}
        teacher = role.teacher
        is_frozen = role.attach == "frozen" and teacher and found[teacher].is_finished
        if teacher and not is_frozen and roles[teacher].moves and teacher not in moving:
            moving.add(teacher)
            waiting.append(teacher)

    def mode(name: str) -> Mode:
        if not roles[name].moves:
            return "frozen"
        if not found[name].is_finished:
            return "train"
        return "replay" if name in moving or name in asked else "frozen"

    return {
        name: replace(found[name], mode=mode(name), has_steps=name in moving and roles[name].moves)
        for name in in_teaching_order(roles)
        if name in needed
    }


def _refusal(
    name: str, roles: Mapping[str, Role], found: Mapping[str, Situation], store: Store
) -> Refusal | None:
    role, student = roles[name], found[name]
    if not role.teacher or role.attach != "refuse" or student.is_finished or student.is_begun:
        return None
    if not roles[role.teacher].moves:
        return None
    teacher = found[role.teacher]
    at = teacher.standing.end if teacher.is_finished else teacher.standing.newest or 0
    if at <= student.standing.start and _has_lessons(at, role, student, teacher, store):
        return None
    return Refusal(
        student=name,
        teacher=role.teacher,
        start=student.standing.start,
        teacher_at=at,
        replay_from=teacher.standing.before(student.standing.start - role.delay),
        end=student.standing.end,
        delay=role.delay,
    )


def _has_lessons(step: int, role: Role, student: Situation, teacher: Situation, store: Store) -> bool:
    """Whether a student can continue from the teacher's checkpoint of `step`, or start with it. A student
    that is `delay` steps behind needs the lessons of the steps before in that checkpoint.
    """
    missing = {*range(max(step, student.standing.start) - role.delay, step)}
    return not missing or missing <= steps_kept(store, teacher.segments, step, state_of(role.lesson))


def _resume_step(
    roles: Mapping[str, Role], chosen: Mapping[str, Situation], store: Store, asked: Mapping[str, int]
) -> int:
    """The newest step at which every training role has a checkpoint or has not started, from which its
    students can continue, and which other sites still accept. A fully trained role without students does not
    count.
    """
    moving = {name: one for name, one in chosen.items() if one.has_steps}
    most = min((asked[name] for name in moving if name in asked), default=None)
    candidates = {0} | {step for s in moving.values() for step in s.standing.steps}

    def fits(step: int) -> bool:
        if most is not None and step > most:
            return False
        if not all(step in s.standing.steps or step <= s.standing.start for s in moving.values()):
            return False
        behind = [name for name in moving if roles[name].delay and roles[name].teacher in moving]
        return all(
            _has_lessons(step, roles[name], moving[name], moving[roles[name].teacher], store)
            for name in behind
        )

    if not moving:
        return max((s.standing.end for s in chosen.values()), default=0)
    return max(step for step in candidates if fits(step))


def members(
    found: ResumePlan,
    roles: Mapping[str, Role],
    models: Mapping[str, tuple[str, str]],
    store: Store,
    fences: Mapping[str, int],
    vocab: int,
    maps: Mapping[str, Map],
    resume: Resume,
) -> dict[str, Member]:
    """The gang's members for run.json, with models resolved for vocabulary size `vocab`. `fences` (address ->
    fence) number the metric segments.
    """
    result = {}
    for name, situation in found.situations.items():
        finished = store.find(*models[name])
        digest = ""
        if situation.mode == "replay" and finished is not None:
            digest = weights_digest(finished.files, store.address(finished.kind, finished.fingerprint))
        segments = situation.segments
        is_init = bool(segments) and "init" in segments[0].parents
        # if the meaning is unchanged, the recorded digest is kept
        _, code, changes = _code_of(segments, maps[name], store) if segments else (0, "", ())
        role = roles[name].model_copy(update={"model": roles[name].model.resolved(vocab)})
        result[name] = Member(
            role=role,
            mode=situation.mode,
            segments=segment_addresses(store, situation.segments, fences),
            digest=digest,
            code=digest_of(maps[name]) if changes or not code else code,
            accept_code=resume.accept_code,
            output="" if situation.is_finished else name,
            init=f"frozen.{name}" if situation.mode == "frozen" else f"init.{name}" if is_init else "",
        )
    return result


def check(
    node: str, found: ResumePlan, leased: Container[str] | None = None, store: Store | None = None
) -> ResumePlan:
    """Return `found` if it can be carried out.

    Raises ConfigError with all refusals. With the held leases (`leased`): AtelierError if other leases are
    needed, because the store changed while this run waited.
    """
    if found.refusals:
        raise ConfigError(node, "; ".join(map(str, found.refusals)))
    if leased is not None and store is not None:
        strange = [address for address in lease_addresses(found, store) if address not in leased]
        if strange:
            raise AtelierError(
                f"{node}: the stored state of {strange[0]} has changed while this run waited for its lease;"
                " run the same command again"
            )
    return found


def lease_addresses(found: ResumePlan, store: Store) -> list[str]:
    """Addresses of the trajectory segments that the gang will write."""
    return [
        store.address("trajectory", segment.fingerprint)
        for situation in found.situations.values()
        if situation.mode == "train"
        for segment in situation.segments
        if segment.end > found.from_step or situation.has_trained
    ]
