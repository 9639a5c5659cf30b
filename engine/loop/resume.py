"""Find the step from which each role resumes, from the checkpoints of its trajectories. Works on plain
numbers, without tensors.

A student resumes from its newest good checkpoint; its teacher from the newest one that is not past any
unfinished student. If students are `delay` steps behind, the teacher's checkpoint must also hold the drawn
tokens that they still need, or be no later than they need them. A role without checkpoint begins at its start
step. The gang's clock begins at the earliest of these steps; roles that are ahead wait.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

from atelier.engine.checkpoint.collective_call import RankGroup, all_or_none
from atelier.engine.checkpoint.folder import address, newest_good
from atelier.engine.checkpoint.manifest import read_manifest
from atelier.engine.checkpoint.state import nested
from atelier.engine.config.error import ConfigError, DamageError
from atelier.engine.config.lesson_state import state_of
from atelier.engine.config.run_file import Member, SegmentAddress
from atelier.engine.io.storage import exists, join, reach, read_text

CHECKPOINTS = "checkpoints"
DIVERGED = "diverged.txt"  # in a trajectory of a diverged role: the reason


@dataclass
class ResumePoint:
    """Where roles resume: `steps` by role (none for frozen ones), which have a checkpoint there, the damage
    found, and the reasons of diverged roles.
    """

    steps: dict[str, int] = field(default_factory=dict)
    has_checkpoint: dict[str, bool] = field(default_factory=dict)
    damages: list[str] = field(default_factory=list)
    diverged: dict[str, str] = field(default_factory=dict)

    def clock(self, members: Mapping[str, Member]) -> int:
        """The first step of the gang: the earliest step of unfinished roles, or the end."""
        unfinished = [step for name, step in self.steps.items() if step < members[name].segments[-1].end]
        return min(unfinished, default=max(self.steps.values(), default=0))


def resume_point(members: Mapping[str, Member], limits: Mapping[str, int]) -> ResumePoint:
    """Find every role's step, not past its limit if it has one. `steps` lacks roles that have diverged, and
    roles that are finished, published and needed by no student.

    Raises ConfigError if a teacher starts later than its students, DamageError if a role must be trained
    again without a lease.
    """
    result = ResumePoint()
    members = {name: member for name, member in members.items() if member.mode != "elsewhere"}
    for name in students_first(members):
        member = members[name]
        if member.mode == "train" and (said := _diverged(member)):
            result.diverged[name] = said
            continue
        unfinished = [
            student
            for student, other in members.items()
            if other.role.teacher == name
            and result.steps.get(student, other.segments[-1].end) < other.segments[-1].end
        ]
        if member.mode == "frozen":
            continue
        end = member.segments[-1].end
        at_most = min([limits.get(name, end), end, *(result.steps[student] for student in unfinished)])
        step = _newest(member, at_most, result.damages)
        first = min((result.steps[s] - members[s].role.delay for s in unfinished), default=at_most)
        states = {state_of(members[s].role.lesson) for s in unfinished if members[s].role.delay}
        while step is not None and step > first and not _has_kept(member, step, states, range(first, step)):
            step = _newest(member, step - 1, result.damages)
        result.has_checkpoint[name] = step is not None
        start = int(member.role.start)
        if step is None and start > at_most:
            raise ConfigError(
                f"roles.{name}.start",
                f"step {start}, but a teacher must not start later than its students:"
                f" {', '.join(unfinished)} start at step {at_most}",
                f"give {at_most} or less",
            )
        step = start if step is None else step
        _check_leases(member, step, result.damages)
        if step < member.segments[-1].end or unfinished or member.output or member.mode == "replay":
            result.steps[name] = step
    return result


def resume_point_together(
    members: Mapping[str, Member],
    limits: Mapping[str, int],
    gang: RankGroup,
    asked: Callable[[], Mapping[str, int]] = dict,
) -> ResumePoint:
    """`resume_point` on rank 0, after a check that every checkpoint store is reachable; all ranks get its
    result or raise its error. `asked`: further limits.
    """

    def decide() -> ResumePoint | None:
        if gang.rank != 0:
            return None
        for member in members.values():
            if member.mode == "train":
                reach(checkpoints(member.segments[-1]))
        both = {**limits}
        for name, step in asked().items():
            both[name] = min(step, both.get(name, step))
        return resume_point(members, both)

    return cast(ResumePoint, all_or_none(gang, decide, lambda found: found[:1] * gang.world))


def students_first(members: Mapping[str, Member]) -> list[str]:
    """Role names, students before teachers."""
    result: list[str] = []

    def visit(name: str) -> None:
        for student, member in members.items():
            if member.role.teacher == name:
                visit(student)
        if name not in result:
            result.append(name)

    for name in members:
        visit(name)
    return result


def protected_steps(members: Mapping[str, Member]) -> set[int]:
    """Steps whose checkpoints are always kept: ends of all segments and start steps of all roles."""
    ends = {segment.end for member in members.values() for segment in member.segments}
    return ends | {int(member.role.start) for member in members.values() if member.mode != "frozen"} - {0}


def _diverged(member: Member) -> str:
    """The reason why a role ended in an earlier run, and how to train it again; '' if it did not."""
    place = join(member.segments[-1].url, DIVERGED)
    if not exists(place):
        return ""
    return f"{read_text(place)} (in an earlier run; remove {place} to train it again)"


def _newest(member: Member, at_most: int, damages: list[str]) -> int | None:
    """The newest good checkpoint in a role's own segments, not past `at_most`."""
    first = member.segments[0]
    for segment in reversed(member.segments):
        lowest = segment.start if segment is first else segment.start + 1
        if lowest > at_most:
            continue
        step, found = newest_good(
            checkpoints(segment), trajectory=segment.fingerprint, at_most=min(at_most, segment.end)
        )
        damages.extend(found)
        if step is not None and step >= lowest:
            return step
    return None


def _has_kept(member: Member, step: int, states: set[str], needed: range) -> bool:
    """Whether a teacher's good checkpoint of `step` holds the `needed` steps under each of these names."""
    segment = next(each for each in member.segments if step <= each.end)
    values = nested(read_manifest(address(checkpoints(segment), step), step=step).values)
    return all({*needed} <= {int(key) for key in values.get(state, {})} for state in states)


def _check_leases(member: Member, step: int, damages: list[str]) -> None:
    """Raise DamageError if a role would be trained from `step` without a lease: the checkpoint to resume from
    was damaged or has been removed.
    """
    for segment in member.segments:
        if member.mode == "train" and segment.end > step and not segment.is_leased:
            found = f" ({damages[0]})" if damages else ""
            raise DamageError(
                f"{checkpoints(segment)}: no good checkpoint of step {segment.end}{found}, and this run"
                " does not hold the lease to train it again"
            )


def checkpoints(segment: SegmentAddress) -> str:
    """The folder of a trajectory's checkpoints."""
    return join(segment.url, CHECKPOINTS)
