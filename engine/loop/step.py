"""One step of the gang's clock: all active roles see the same batches, and students see their teacher's
forward pass of each.

Order per micro-batch: teacher forward; forward of other finished models that students compare with; each
student's forward and backward; teacher's backward (heads must stay gathered until students have read them).
Students of a pipelined teacher run on the last stage between its forward and backward. Roles share only the
teacher's detached tensors, so no role changes another's bits.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor

from atelier.engine.config.error import DataError
from atelier.engine.config.train import Bad
from atelier.engine.loop.counts import Counts
from atelier.engine.loop.role_state import ALL, RoleState, is_finite
from atelier.engine.loop.stage import AUX, ForwardResult
from atelier.engine.loop.teacher_outputs import check_same_ids, own_rows, teacher_side_for
from atelier.engine.objective.load import RIGHT, SHARE, reads_relations
from atelier.engine.parallel.gang import Gang


@dataclass(frozen=True)
class StepGroup:
    """The roles active at one step. `roots`: roles without active teacher here; `students`: by teacher name;
    `beside`: by the same name, finished models that single objectives of those students compare with.
    """

    roots: tuple[RoleState, ...]
    students: dict[str, tuple[RoleState, ...]]
    beside: dict[str, tuple[RoleState, ...]] = field(default_factory=dict)

    def moving(self) -> list[RoleState]:
        """All roles that train in this step, students before teachers."""
        result: list[RoleState] = []

        def visit(member: RoleState) -> None:
            for student in self.students.get(member.name, ()):
                visit(student)
            result.append(member)

        for root in self.roots:
            visit(root)
        return [member for member in result if member.moves]

    def all(self) -> list[RoleState]:
        return [*self.roots, *(student for students in self.students.values() for student in students)]


def step_group_at(members: dict[str, RoleState], clock: int) -> StepGroup:
    """The roles that are active at step `clock`."""
    moving = [member for member in members.values() if member.is_active(clock)]
    students: dict[str, tuple[RoleState, ...]] = {}
    for member in moving:
        if member.role.teacher in members:
            students[member.role.teacher] = (*students.get(member.role.teacher, ()), member)
    frozen = [
        member
        for member in members.values()
        if not member.moves and (member.name in students or member.is_asked)
    ]
    beside = {
        name: tuple(
            members[other]
            for other in dict.fromkeys(
                other for student in taught for other in student.role.other_teachers.values()
            )
        )
        for name, taught in students.items()
    }
    return StepGroup(
        roots=(*frozen, *(member for member in moving if member.role.teacher not in members)),
        students=students,
        beside=beside,
    )


@dataclass
class StepOutcome:
    """One role's result of a step. Losses are means over the scored tokens of the global batch, in nats; a
    step with classes but no scored token keeps the last known loss.
    """

    loss: float
    objectives: dict[str, float]
    grad_norm: float
    lr: float = 0.0
    lead: float | None = None  # the teacher's lead, averaged over steps, nats
    distilled: bool = False
    skipped: bool = False
    bad: Bad = ""
    has_text: bool = True
    passed_over: bool = False  # no samples, no update
    rolled_back: bool = False  # passed over, and the reason of the rollback
    weights: dict[str, float] = field(default_factory=dict)  # of objectives with a schedule
    measured: dict[str, float] = field(default_factory=dict)  # of the model, from sums without gradient
    looks: dict[str, float] = field(default_factory=dict)  # held-out means, by metric name

    def values(self) -> dict[str, float]:
        """The metric values without non-finite numbers; skipped, spiking, passed-over and rolled-back steps
        are marked.
        """
        result = {"loss": self.loss, "grad_norm": self.grad_norm, "lr": self.lr}
        result |= {metric_name(name): value for name, value in self.objectives.items()}
        if self.lead is not None:
            result |= {"lead": self.lead, "distilling": float(self.distilled)}
        result |= {f"objective/weight/{name}": weight for name, weight in self.weights.items()}
        result |= self.measured | self.looks
        if not self.has_text:
            result.pop("loss")
        result = {name: value for name, value in result.items() if is_finite(value)}
        marks = {"skipped": self.skipped, "spike": self.bad == "spike"}
        marks |= {"passed_over": self.passed_over, "rolled_back": self.rolled_back}
        return result | {name: 1.0 for name, is_so in marks.items() if is_so}


def metric_name(name: str) -> str:
    """Metric name of an objective's mean, accuracy or share, or of a sum from a model's blocks."""
    if name.startswith(AUX):
        return name
    if name.endswith(SHARE):
        return f"objective/share/{name.removesuffix(SHARE)}"
    return f"objective/accuracy/{name.removesuffix(RIGHT)}" if name.endswith(RIGHT) else f"objective/{name}"


@dataclass
class _Tally:
    """Sums over this rank's micro-batches, by role and objective."""

    sums: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    def add(self, role: str, sums: dict[str, Tensor]) -> None:
        mine = self.sums.setdefault(role, {})
        for name, value in sums.items():
            mine[name] = mine[name] + value.double() if name in mine else value.double()


def train_step(
    step_group: StepGroup, batches: Sequence[dict[str, Tensor]], *, clock: int, counts: Counts, gang: Gang
) -> dict[str, StepOutcome]:
    """Forward, backward and update of all active roles on this rank's micro-batches; outcomes by role,
    students first. None if every root passes the step over.

    `counts`: of the step over all ranks; each objective's sum is divided by the count of its rows.
    """
    if not step_group.roots:
        return {}
    tally = _Tally()
    for root in step_group.roots:
        RoleStep(root, step_group, list(batches), clock, counts, tally).go()
    for member in step_group.all():
        member.forwards += len(batches)
        for student in step_group.students.get(member.name, ()):
            student.teacher_forwards += len(batches)
        if member.remote is not None:
            member.teacher_forwards += len(batches)
    with gang.regions("reduce"):
        numbers, sums = _gather(tally, step_group, counts, gang)
    for member in step_group.all():
        for tap in member.taps.values():
            tap.loss = numbers.get((member.name, ALL))
    outcomes = {member.name: _update(member, numbers, sums[member.name]) for member in step_group.moving()}
    for member in step_group.moving():
        outcomes[member.name].measured = member.measured(sums[member.name], counts.tokens)
        if member.gradient_handler is not None:
            outcomes[member.name].measured |= member.gradient_handler.measured
        if member.remote is not None and outcomes[member.name].distilled:
            outcomes[member.name].measured |= member.remote.measured
    return outcomes


class RoleStep:
    """One step of a root with all its students, direct or not."""

    def __init__(
        self,
        root: RoleState,
        step_group: StepGroup,
        batches: list[dict[str, Tensor]],
        clock: int,
        counts: Counts,
        tally: _Tally,
    ) -> None:
        self.root, self.step_group, self.counts, self.tally = root, step_group, counts, tally
        self.clock = clock
        self.works = {root.name: root.work(batches, clock, counts)}
        self.lengths = [batch["tokens_BT"].shape[1] for batch in batches]
        self._deal_out(root, batches, clock)
        if root.remote is not None and root.is_distilling():
            remote = root.remote
            own = enumerate(self.works[root.name].batches)
            self.works[root.name].sides = {index: remote.side(batch) for index, batch in own}
        taught = [student for students in step_group.students.values() for student in students]
        for name, work in self.works.items():
            work.keeps_logits = any(student.needs_logits(name) for student in taught)

    def _deal_out(self, teacher: RoleState, batches: list[dict[str, Tensor]], clock: int) -> None:
        for other in self.step_group.beside.get(teacher.name, ()):
            if other.body is not None:
                mine = [own_rows(batch, other.grid, teacher.grid) for batch in batches]
                self.works[other.name] = other.work(mine, clock, self.counts)
        for student in self.step_group.students.get(teacher.name, ()):
            if student.body is None:
                continue
            mine = [own_rows(batch, student.grid, teacher.grid) for batch in batches]
            self.works[student.name] = student.work(mine, clock, self.counts)
            self._deal_out(student, mine, clock)

    def go(self) -> None:
        work = self.works[self.root.name]
        with self.root.gang.regions(f"role {self.root.name}"):
            if self.root.moves:
                self.root.train(work, lambda index, total: self.after(self.root, index, total))
            else:
                self.root.infer(work, lambda index, total: self.after(self.root, index, total))

    def after(self, member: RoleState, index: int, total: Tensor) -> Tensor:
        """Run the students of `member` after its forward pass of a micro-batch; returns the tensor from which
        its backward pass starts.
        """
        result = self.works[member.name].results.pop(index)
        self.tally.add(member.name, result.sums)
        for tap in member.taps.values():
            if tap.is_asked:
                batch = self.works[member.name].batches[index]
                tap.add(batch, self.clock, result.hidden_BTD, result.head_weight_VD)
        students = self.step_group.students.get(member.name, ())
        asked = {t for s in students if s.is_distilling() for t in s.role.other_teachers.values()}
        others = [other for other in self.step_group.beside.get(member.name, ()) if other.name in asked]
        with torch.enable_grad():
            self._teach(member, students, index, [(member, result)], others)
        member.gang.heartbeat.at("backward")
        return total / member.row_divisor(self.works[member.name].batches[index], self.counts)

    def _teach(
        self,
        member: RoleState,
        students: Sequence[RoleState],
        index: int,
        told: list[tuple[RoleState, ForwardResult]],
        others: list[RoleState],
    ) -> None:
        """Run the `others` nested in each other, then the students of `member`, which compare with the
        results in `told`.
        """
        if not others:
            for student in students:
                self._train_one(student, index, told)
            return
        first, *rest = others
        work = self.works.get(first.name)
        if first.body is None or work is None:  # then this rank has no student either
            self._teach(member, students, index, told, rest)
            return

        def then(number: int, _: Tensor) -> None:
            both = [*told, (first, work.results.pop(number))]
            with torch.enable_grad():
                self._teach(member, students, number, both, rest)

        with torch.no_grad(), first.gang.regions(f"role {first.name}"):
            first.body.infer_one(index, work, then)

    def _train_one(self, student: RoleState, index: int, told: list[tuple[RoleState, ForwardResult]]) -> None:
        """Forward and backward of a student, with its shares of its teachers' outputs."""
        work = self.works[student.name]
        if student.is_distilling():
            for teacher, result in told:
                compared = {n: s for n, s in student.compared_with(teacher.name).items() if n in work.mix}
                if not compared:
                    continue
                check_same_ids(student.role.model, teacher.role.model)
                side = teacher_side_for(
                    student.grid,
                    teacher.grid,
                    result,
                    self.lengths[index],
                    rows=student.role.model.tokens,
                    with_relations=reads_relations(compared.values()),
                )
                if teacher.name == student.role.teacher:
                    work.sides[index] = side
                else:
                    work.others[index] = {**work.others.get(index, {}), **dict.fromkeys(compared, side)}
        if student.body is not None:
            with student.gang.regions(f"role {student.name}"):
                student.body.train_one(index, work, lambda index, total: self.after(student, index, total))
        work.sides.pop(index, None)
        work.others.pop(index, None)


Numbers = dict[tuple[str, str], float]


def _gather(
    tally: _Tally, step_group: StepGroup, counts: Counts, gang: Gang
) -> tuple[Numbers, dict[str, dict[str, Tensor]]]:
    """All sums and squared gradient norms over all ranks: (role, objective, ALL or "") -> mean, mean of all
    tokens, norm; without objectives that have no row in this step. Also, by role, sums without gradient.

    One collective per role: with more than two ranks, an element's summation order depends on its place in
    the vector and the vector's length, and no role's bits may depend on other roles.
    """
    nothing = torch.zeros((), dtype=torch.float64, device=gang.device)
    grid, moving = step_group.roots[0].grid, {member.name for member in step_group.moving()}
    names, added = {}, []
    for member in step_group.all():
        found = tally.sums.get(member.name, {}) if member.grid.is_counted else {}
        names[member.name] = list(dict.fromkeys([*member.logged(), member.text]))
        parts = torch.stack([found.get(name, nothing) for name in names[member.name]])
        aux = [found.get(AUX + name, nothing.expand(s.shape)).flatten() for name, s in member.sums.items()]
        squares = [member.weights.squares()] if member.name in moving else []
        added.append(grid.sum(torch.cat([parts, *aux, *squares])))
    values = iter(torch.cat(added).tolist())
    result: Numbers = {}
    counted: dict[str, dict[str, Tensor]] = {}
    for member, vector in zip(step_group.all(), added, strict=True):
        mine = list(islice(values, len(vector)))
        for name, value in zip(names[member.name], mine, strict=False):
            if divisor := member.divisor(name, counts):
                result[(member.name, name)] = value / divisor
                if name == member.text:
                    result[(member.name, ALL)] = value / divisor
        place, counted[member.name] = len(names[member.name]), {}
        for name, one in member.sums.items():
            end = place + math.prod(one.shape)
            if one.weight:
                result[(member.name, AUX + name)] = math.fsum(mine[place:end]) / counts.divisor
            else:
                counted[member.name][name] = vector[place:end].view(one.shape)
            place = end
        if member.name in moving:
            # exact, hence independent of order and of weights' placement
            result[(member.name, "")] = math.fsum(mine[place:]) ** 0.5
    return result, counted


def _teacher_loss(member: RoleState, numbers: Numbers) -> float:
    """The teacher's loss in this step. Raises DataError if a remote teacher's message has none."""
    if member.remote is None:
        return numbers[(member.role.teacher, ALL)]
    if member.remote.loss is None:
        raise DataError(f"{member.remote.place}: has no loss of {member.role.teacher}")
    return member.remote.loss


def _update(member: RoleState, numbers: Numbers, sums: dict[str, Tensor]) -> StepOutcome:
    name = member.name
    loss = numbers.get((name, ALL), member.last.get("loss", 0.0))
    norm = numbers[(name, "")]
    objectives = {
        key: value for (role, key), value in numbers.items() if role == name and key not in ("", ALL)
    }
    result = StepOutcome(loss=loss, objectives=objectives, grad_norm=norm, distilled=member.is_distilling())
    result.weights = member.weights_that_move()
    result.has_text = (name, ALL) in numbers
    if (
        member.gradient_handler is None
    ):  # otherwise one micro-batch's loss would decide on the others' gradients
        means = {metric_name(key): value for key, value in objectives.items()}
        result.bad = member.health.judge(loss, norm, means)
    result.skipped = bool(result.bad)
    if member.lead is not None and result.has_text and not member.role.reads_changed:
        lead = loss - _teacher_loss(member, numbers)
        if is_finite(lead):
            member.lead.observe(lead, member.step)
        result.lead = member.lead.nats
    result.lr = member.update(norm, is_good=not result.skipped)
    if not result.skipped and member.role.trainable.kind == "full":  # otherwise its base does not change
        member.weights.after_step(sums)
    if is_finite(loss):
        member.last["loss"] = loss
    return result
