"""A training up to a step, from the records of its trajectories and of a model that it made."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from atelier.engine.config.base import Json
from atelier.engine.config.data_plan import left_out_of
from atelier.engine.config.document import whole_of
from atelier.engine.config.record import Record
from atelier.infra.report.lineage import Index, trajectory_start
from atelier.infra.report.route import Lesson, TrainingRead


@dataclass(frozen=True)
class Problem:
    """A trajectory whose record is missing or damaged, in words."""

    fingerprint: str
    words: str


@dataclass(frozen=True, kw_only=True)
class PartOfTraining:
    """Steps start <= step < end of a training. `trajectories`: trunk first. `planned`: one that goes through
    all of them, and on to the model's end. `parents`: of all of them, and of
    the model. `teacher`: the trajectory or model that taught last.
    """

    model: Record | None
    trajectories: tuple[str, ...]
    planned: str
    start: int
    end: int
    parents: Mapping[str, str]
    teacher: str
    is_frozen: bool
    problems: tuple[Problem, ...]

    def reading(self, source: str) -> TrainingRead | None:
        """What the training read of a source; None if no trajectory has a record."""
        if len(self.problems) == len(self.trajectories):
            return None
        last = whole_of(self.model.identity.get("step")) if self.model else 0
        summary = cast(Mapping[str, Json], self.model.summary if self.model else {})
        every = left_out_of(summary, self.start, last)
        return TrainingRead(
            trajectories=self.trajectories,
            planned=self.planned,
            start=self.start,
            end=self.end,
            source=source,
            left_out=tuple(step for step in every if step < self.end),
            all_left_out=tuple(every),
            consumed=summary.get("consumed"),
            counted_to=last,
            has_record=self.model is not None,
        )

    def lesson(self, is_together: bool) -> Lesson | None:
        """When a teacher taught; None = never. `is_together`: the teacher is a trajectory, of one training
        with its student.
        """
        summary = cast(Mapping[str, Any], self.model.summary if self.model else {})
        name = self.model.name if self.model else self.trajectories[-1][:8]
        steps = summary.get("teacher_steps")
        gate = summary.get("gate_step", self.start if not self.model else None)
        if steps == [] or ("gate_step" in summary and gate is None):
            return None
        first = gate if isinstance(gate, int) else self.start
        if first >= self.end:
            return None
        last = self.end - 1
        if not is_together or self.is_frozen or (self.model and not steps):
            return Lesson(student=name, first=first, last=last, teacher_end=None)
        behind = first - steps[0] if steps else 0
        most = min(steps[1], last - behind) if steps else last
        return Lesson(student=name, first=first, last=most + behind, teacher_end=most)


def trained(index: Index, trajectory: str, model: Record | None, until: int | None = None) -> PartOfTraining:
    """The training that ended on a trajectory: of a model, or before step `until`. `model` may have ended
    later than `until`; its trajectory then may be a branch of this one.
    """
    chain: list[str] = []
    for fp in index.chain(trajectory):
        if fp in chain:
            break
        chain.append(fp)
    chain.reverse()
    records = {fp: index.trajectory_records.get(fp) for fp in chain}
    known = [record for record in records.values() if record is not None]
    if model is not None and until is None:
        until = whole_of(model.identity.get("step"))
    end = until or 0
    begun = [record for record in known if trajectory_start(record) < end] or known
    parents: dict[str, str] = {}
    if model is not None and len(known) < len(chain):
        parents = {key: fp for key, fp in model.parents.items() if key not in ("trajectory", "teacher")}
    for record in begun:
        parents |= {key: fp for key, fp in record.parents.items() if key not in ("trunk", "teacher")}
    teachers = [record.parents["teacher"] for record in begun if "teacher" in record.parents]
    if not teachers and model is not None and "teacher" in model.parents:
        teachers = [model.parents["teacher"]]
    first, own = records[chain[0]], model.parents.get("trajectory", "") if model is not None else ""
    started = whole_of(model.summary.get("started_at")) if model is not None else 0
    is_whole = first is not None and "trunk" not in first.parents
    return PartOfTraining(
        model=model,
        trajectories=tuple(chain),
        planned=own if model is not None and trajectory in index.chain(own) else trajectory,
        start=whole_of(first.identity.get("start")) if first is not None and is_whole else started,
        end=end,
        parents=parents,
        teacher=teachers[-1] if teachers else "",
        is_frozen=any(record.identity.get("attach") == "frozen" for record in begun),
        problems=tuple(
            Problem(
                fp, f"the record of trajectory {fp[:8]}, which read some of the steps, is gone or damaged"
            )
            for fp, record in records.items()
            if record is None
        ),
    )
