"""One step of the gang's clock: every active role sees the same batches, students see their teacher's forward
pass of each.

Order for a micro-batch: teacher forward, each student's forward and backward, then the teacher's backward
(its head must stay gathered until its students have read it). Roles share nothing but the teacher's detached
tensors, so that none moves another's bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.loop.member import Member, is_finite
from engine.objective.chunked import TeacherSide
from engine.parallel import Gang
from engine.spec.health import Bad


@dataclass(frozen=True)
class Circle:
    """The roles that are active at one step: roots have no active teacher, learners are by teacher name."""

    roots: tuple[Member, ...]
    learners: dict[str, tuple[Member, ...]]

    def moving(self) -> list[Member]:
        """All roles that train in this step, students before their teachers."""
        result: list[Member] = []

        def visit(member: Member) -> None:
            for learner in self.learners.get(member.name, ()):
                visit(learner)
            result.append(member)

        for root in self.roots:
            visit(root)
        return [member for member in result if member.moves]

    def all(self) -> list[Member]:
        return [*self.roots, *(learner for learners in self.learners.values() for learner in learners)]


def circle_at(members: dict[str, Member], clock: int) -> Circle:
    """Who takes part in step `clock`."""
    moving = [member for member in members.values() if member.is_active(clock)]
    learners: dict[str, tuple[Member, ...]] = {}
    for member in moving:
        if member.role.teacher:
            learners[member.role.teacher] = (*learners.get(member.role.teacher, ()), member)
    frozen = [member for member in members.values() if not member.moves and member.name in learners]
    return Circle(
        roots=(*frozen, *(member for member in moving if not member.role.teacher)), learners=learners
    )


@dataclass
class Outcome:
    """What a step did to one role. Losses are means over the scored tokens of the global batch, nats."""

    loss: float
    objectives: dict[str, float]
    grad_norm: float
    lr: float = 0.0
    gap: float | None = None  # the EMA that the gate compares, nats
    distilled: bool = False
    skipped: bool = False
    bad: Bad = ""
    passed_over: bool = False  # its root rolled back: no samples were seen, no update was made
    rolled_back: bool = False  # passed over, and the step for which it rolled back
    eval_loss: float | None = None

    def values(self) -> dict[str, float]:
        """The metric values; a number that is not finite is left out and the step marked as skipped."""
        result = {"loss": self.loss, "grad_norm": self.grad_norm, "lr": self.lr}
        result |= {f"objective/{name}": value for name, value in self.objectives.items()}
        if self.gap is not None:
            result |= {"gap": self.gap, "distilling": float(self.distilled)}
        if self.eval_loss is not None:
            result["eval/loss"] = self.eval_loss
        result = {name: value for name, value in result.items() if is_finite(value)}
        marks = {"skipped": self.skipped, "spike": self.bad == "spike"}
        marks |= {"passed_over": self.passed_over, "rolled_back": self.rolled_back}
        return result | {name: 1.0 for name, is_so in marks.items() if is_so}


@dataclass
class _Tally:
    """Sums over this rank's micro-batches, by role and objective."""

    sums: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    def add(self, role: str, sums: dict[str, Tensor]) -> None:
        mine = self.sums.setdefault(role, {})
        for name, value in sums.items():
            mine[name] = mine[name] + value.double() if name in mine else value.double()


def take_step(
    circle: Circle, batches: Sequence[dict[str, Tensor]], *, clock: int, num_scored: int, gang: Gang
) -> dict[str, Outcome]:
    """Forward, backward and update of all active roles on this rank's micro-batches; outcomes by role,
    students first.

    `num_scored`: scored tokens of the step over all ranks; each objective is summed and divided by it.
    """
    tally = _Tally()
    before = {member.name: member.forwards for member in circle.all()}
    for index, batch in enumerate(batches):
        for root in circle.roots:
            _descend(root, circle, batch, None, (clock, index, gang.rank), num_scored, tally)
    moving = circle.moving()
    numbers = _gather(tally, moving, num_scored, gang)
    outcomes = {}
    for member in moving:
        for learner in circle.learners.get(member.name, ()):
            learner.teacher_forwards += member.forwards - before[member.name]
        outcomes[member.name] = _update(member, numbers)
    for root in circle.roots:
        if not root.moves:
            for learner in circle.learners[root.name]:
                learner.teacher_forwards += root.forwards - before[root.name]
    return outcomes


def _descend(
    member: Member,
    circle: Circle,
    batch: dict[str, Tensor],
    side: TeacherSide | None,
    names: tuple[int, ...],
    num_scored: int,
    tally: _Tally,
) -> None:
    result = member.forward(batch, side, *names)
    tally.add(member.name, result.sums)
    learners = circle.learners.get(member.name, ())
    own_side = TeacherSide(result.hidden_BTD, result.head_weight_VD) if learners else None
    for learner in learners:
        _descend(learner, circle, batch, own_side, names, num_scored, tally)
    if member.moves:
        member.gang.pulse.at("backward")
        (result.total / num_scored).backward()


def _gather(tally: _Tally, moving: list[Member], num_scored: int, gang: Gang) -> dict[tuple[str, str], float]:
    """All sums and squared gradient norms over all ranks, in one collective and one transfer: (role,
    objective or "") -> mean or norm.
    """
    names = [(role, name) for role, sums in tally.sums.items() for name in sums]
    parts = [tally.sums[role][name] for role, name in names]
    norms = [member.squared_norm() for member in moving]
    together = gang.sum(torch.stack([*parts, *norms])).tolist()
    result = {key: value / num_scored for key, value in zip(names, together, strict=False)}
    for member, square in zip(moving, together[len(names) :], strict=True):
        result[(member.name, "")] = square**0.5
    return result


def _update(member: Member, numbers: dict[tuple[str, str], float]) -> Outcome:
    name = member.name
    loss, norm = numbers[(name, "lm")], numbers[(name, "")]
    objectives = {key: value for (role, key), value in numbers.items() if role == name and key}
    result = Outcome(loss=loss, objectives=objectives, grad_norm=norm, distilled=member.distils())
    result.bad = member.health.judge(loss, norm, list(objectives.values()))
    result.skipped = bool(result.bad)
    if member.gate is not None:
        gap = loss - numbers[(member.role.teacher, "lm")]
        if is_finite(gap):
            member.gate.observe(gap, member.step)
        result.gap = member.gate.gap
    result.lr = member.update(norm, is_good=not result.skipped)
    if is_finite(loss):
        member.last["loss"] = loss
    return result
