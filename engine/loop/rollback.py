"""Rolling back: a root and all who learn from it return to a checkpoint before the steps that went wrong, and
pass these steps over when the clock comes again (PaLM, 2204.02311, section 5.1).

The result does not depend on which checkpoint it was: up to the first step passed over all is as it was.
Other roots keep what they have and wait. No checkpoint with another past is left when the gang goes on, and
each new one names the steps, so that a run that is killed in between ends with the same bits.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from atelier.engine.checkpoint.folder import address, drop, steps
from atelier.engine.config.error import AtelierError
from atelier.engine.loop.report import ProgressReport
from atelier.engine.loop.resume import checkpoints
from atelier.engine.loop.role_state import RoleState
from atelier.engine.loop.step import StepGroup, StepOutcome
from atelier.engine.parallel.gang import Gang


@dataclass(frozen=True)
class History:
    """What a training has rolled back so far: the bad steps by root, and the steps at which roles go on at
    most.
    """

    bad: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    at_most: Mapping[str, int] = field(default_factory=dict)


class RolledBack(Exception):
    """The gang has to begin again, with this history."""

    def __init__(self, history: History) -> None:
        super().__init__("rolled back")
        self.history = history


def root_of(members: Mapping[str, RoleState], member: RoleState) -> RoleState:
    """The role at the head of a role's teachers."""
    while member.role.teacher in members:
        member = members[member.role.teacher]
    return member


def back_to(root: RoleState, member: RoleState, bad: int) -> int:
    """The step that a member of the root's circle returns to at most when the root rolls back for `bad`."""
    return max(member.start, root.start, bad - root.health.spec.pass_over)


def remember(members: Mapping[str, RoleState], history: History) -> History | None:
    """Every role knows the steps that its root passes over: from the history, and from the checkpoint of any
    role of the root's circle.

    A history when a checkpoint is past one that it does not know: a student whose teacher is replayed may
    have saved one before the teacher found out again.
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
            member.stored_step = -1  # what is stored does not know them yet
    return History({name: tuple(sorted(bad)) for name, bad in known.items()}, at_most) if at_most else None


def part(step_group: StepGroup, clock: int) -> tuple[StepGroup, list[RoleState]]:
    """Who takes the step of `clock`, and whose root passes it over."""
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
    return StepGroup(tuple(root for root in step_group.roots if root.name not in names), students), passing


def pass_over(member: RoleState) -> StepOutcome:
    """The step goes by: no samples, no update."""
    nothing = float("nan")
    member.step += 1
    is_bad = member.step in member.health.rolled_back
    return StepOutcome(
        nothing, {}, nothing, lr=nothing, passed_over=True, rolled_back=is_bad and not member.role.teacher
    )


def act(
    members: Mapping[str, RoleState], outcomes: Mapping[str, StepOutcome], report: ProgressReport
) -> History | None:
    """Tell what went wrong in a step and do what the roles' health says; a history when the gang has to begin
    again.
    """
    bad: dict[str, tuple[int, ...]] = {}
    for name, outcome in outcomes.items():
        member = members[name]
        if not outcome.bad:
            continue
        step, detector = member.step, member.health
        logit_cache = f"roles.{name}: step {step}: {detector.words}"
        action = detector.spec.action(outcome.bad, has_teacher=bool(member.role.teacher))
        if action == "stop":
            way_out = f"health.{outcome.bad}=skip or rollback would go on; the last checkpoint before is kept"
            raise AtelierError(f"{logit_cache}; stopped; {way_out}")
        if action == "skip":
            report.say(warning=f"{logit_cache}; skipped")
            continue
        count = len(detector.rolled_back) + 1
        if count > detector.spec.rollbacks:
            raise AtelierError(
                f"{logit_cache}; it was rolled back {detector.spec.rollbacks} times already; "
                f"lower roles.{name}.optim.lr, or raise health.rollbacks"
            )
        first = max(member.start, step - detector.spec.pass_over) + 1
        passed = f"step {step} is" if first == step else f"steps {first} to {step} are"
        most = detector.spec.rollbacks
        report.say(warning=f"{logit_cache}; rolled back, {passed} passed over (rollback {count} of {most})")
        bad[name] = (*detector.rolled_back, step)
    if not bad:
        for name in outcomes:
            members[name].check_skipped()
        return None
    at_most = {}
    for member in members.values():
        root = root_of(members, member)
        if root.name in bad:
            at_most[member.name] = back_to(root, member, bad[root.name][-1])
    known = {name: tuple(each.health.rolled_back) for name, each in members.items() if not each.role.teacher}
    return History(known | bad, at_most)


def drop_later(members: Iterable[RoleState], history: History, gang: Gang) -> None:
    """Remove the checkpoints that were reached by the steps that are now passed over."""
    if gang.is_first:
        for member in members:
            if not member.is_kept or member.name not in history.at_most:
                continue
            for segment in member.spec.segments:
                for step in steps(checkpoints(segment)):
                    if step > history.at_most[member.name]:
                        drop(address(checkpoints(segment), step))
    gang.barrier()
