"""Rollback: a root and all its students return to a checkpoint before the bad steps, and pass these steps
over when the clock reaches them again (PaLM, 2204.02311, section 5.1).

The result does not depend on which checkpoint: up to the first passed-over step, training is deterministic
(except for rounding if ranks' speeds are measured). Other roots keep their state and wait. Checkpoints after
the bad steps are removed before the gang resumes, and each new one lists the passed-over steps, so a run
killed in between ends with the same bits.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from atelier.engine.checkpoint.folder import address, drop, steps
from atelier.engine.config.error import AtelierError
from atelier.engine.loop.diverged import Diverged
from atelier.engine.loop.report import ProgressReport
from atelier.engine.loop.resume import checkpoints
from atelier.engine.loop.role_state import RoleState
from atelier.engine.loop.step import StepGroup, StepOutcome
from atelier.engine.parallel.gang import Gang


@dataclass(frozen=True)
class History:
    """The rollbacks of a training so far: bad steps by root, and the latest step from which each role may
    resume.
    """

    bad: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    at_most: Mapping[str, int] = field(default_factory=dict)


class RolledBack(Exception):
    """Raised to restart the gang with this history."""

    def __init__(self, history: History) -> None:
        super().__init__("rolled back")
        self.history = history


def root_of(members: Mapping[str, RoleState], member: RoleState) -> RoleState:
    """The root of a role: the head of its chain of teachers."""
    while member.role.teacher in members:
        member = members[member.role.teacher]
    return member


def back_to(root: RoleState, member: RoleState, bad: int) -> int:
    """The latest step to which a member of the root's step group returns when the root rolls back."""
    return max(member.start, root.start, bad - root.health.spec.pass_over)


def remember(members: Mapping[str, RoleState], history: History) -> History | None:
    """Give every role the steps that its root passes over, from the history and from the checkpoints of all
    roles with the same root.

    Returns a history if a checkpoint is past a bad step that it does not list: a student of a replayed
    teacher may have saved one before the teacher reached the bad step again.
    """
    known = {name: set(bad) for name, bad in history.bad.items()}
    for member in members.values():
        known.setdefault(root_of(members, member).name, set()).update(member.health.rolled_back)
    at_most: dict[str, int] = {}
    for name, member in members.items():
        root = root_of(members, member)
        unknown = known[root.name] - set(member.health.rolled_back)
        first = min((back_to(root, member, bad) for bad in unknown), default=member.step)
        if member.step > first:
            at_most[name] = first
        if unknown:
            member.health.rolled_back = sorted(known[root.name])
            member.stored_step = -1  # the stored checkpoint does not list them yet
    return History({name: tuple(sorted(bad)) for name, bad in known.items()}, at_most) if at_most else None


def part(step_group: StepGroup, clock: int) -> tuple[StepGroup, list[RoleState]]:
    """Split the step group of `clock`: roles that take the step, and roles whose root passes it over."""
    passing: list[RoleState] = []

    def visit(member: RoleState) -> None:
        passing.append(member)
        for student in step_group.students.get(member.name, ()):
            visit(student)

    for root in step_group.roots:
        if root.moves and root.health.passes_over(clock + 1):
            visit(root)
    if not passing:
        return step_group, []
    names = {member.name for member in passing}
    students = {name: each for name, each in step_group.students.items() if name not in names}
    roots = tuple(root for root in step_group.roots if root.name not in names)
    return replace(step_group, roots=roots, students=students), passing


def pass_over(member: RoleState) -> StepOutcome:
    """Advance a role over a passed-over step: no samples, no update."""
    nothing = float("nan")
    member.step += 1
    is_bad = member.step in member.health.rolled_back
    return StepOutcome(
        nothing, {}, nothing, lr=nothing, passed_over=True, rolled_back=is_bad and not member.role.teacher
    )


def act(
    members: Mapping[str, RoleState],
    outcomes: Mapping[str, StepOutcome],
    report: ProgressReport,
    diverged: Diverged,
) -> History | None:
    """Report bad steps and act as the roles' health settings demand; returns a history if the gang has to
    restart. A role whose patience is exceeded has diverged.

    Raises AtelierError for the action "stop", after too many rollbacks, or if no role can continue.
    """
    bad: dict[str, tuple[int, ...]] = {}
    for name, outcome in outcomes.items():
        member = members[name]
        if not outcome.bad:
            continue
        step, detector = member.step, member.health
        problem = f"roles.{name}: step {step}: {detector.words}"
        action = detector.spec.action(outcome.bad, has_teacher=bool(member.role.teacher))
        if action == "stop":
            way_out = f"train.health.{outcome.bad}=skip or rollback continues; earlier checkpoints are kept"
            raise AtelierError(f"{problem}; stopped; {way_out}")
        if action == "skip":
            report.say(warning=f"{problem}; skipped")
            continue
        count = len(detector.rolled_back) + 1
        if count > detector.spec.rollbacks:
            raise AtelierError(
                f"{problem}; it was rolled back {detector.spec.rollbacks} times already; lower its"
                " optim.lr, or raise train.health.rollbacks"
            )
        first = max(member.start, step - detector.spec.pass_over) + 1
        passed = f"step {step} is" if first == step else f"steps {first} to {step} are"
        most = detector.spec.rollbacks
        report.say(warning=f"{problem}; rolled back, {passed} passed over (rollback {count} of {most})")
        bad[name] = (*detector.rolled_back, step)
    if not bad:
        for member in (members[name] for name in outcomes if not members[name].has_diverged):
            try:
                member.check_skipped()
            except AtelierError as error:
                diverged.end(member, str(error))
        return None
    at_most = {}
    for member in members.values():
        root = root_of(members, member)
        if root.name in bad:
            at_most[member.name] = back_to(root, member, bad[root.name][-1])
    known = {name: tuple(each.health.rolled_back) for name, each in members.items() if not each.role.teacher}
    return History(known | bad, at_most)


def drop_later(members: Iterable[RoleState], history: History, gang: Gang) -> None:
    """Remove checkpoints after the steps that are now passed over."""
    if gang.is_first:
        for member in members:
            if not member.is_kept or member.name not in history.at_most:
                continue
            for segment in member.spec.segments:
                for step in steps(checkpoints(segment)):
                    if step > history.at_most[member.name]:
                        drop(address(checkpoints(segment), step))
    gang.barrier()
