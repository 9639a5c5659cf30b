"""What trainings read, from their records: the data plan of a trajectory, and the steps that count.

The plan is in a file beside the trajectory's record, with a digest. It is not identity, which has shares of
sum 1 where the training has weights, but follows from the same facts.
"""

import json
from collections.abc import Container, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

from atelier.engine.config.base import Json, fingerprint, parse
from atelier.engine.config.data_plan import DataPlan, check_versions, left_out_of, plan_from
from atelier.engine.config.document import whole_of
from atelier.engine.config.error import AtelierError, DataError
from atelier.engine.config.record import Record
from atelier.engine.config.sections import sections_of
from atelier.engine.config.train import Train
from atelier.engine.io.storage import exists, join, read_object
from atelier.infra.store.conditional_create import create_exclusive
from atelier.infra.store.store import Store
from atelier.infra.store.trajectory import trajectory_start

DATA = "data.json"
Records = Mapping[str, Record]  # of trajectories, by fingerprint


def write_data_plan(store: Store, trajectory: str, plan: DataPlan, train: Train) -> None:
    """Write the plan of a trajectory that is about to train, unless it has one. Trainings at several sites
    have none: there an extension may choose the samples.
    """
    place = join(store.address("trajectory", trajectory), DATA)
    if any(section.places for section in sections_of(train).values()) or exists(place):
        return
    document = cast(Json, plan.model_dump(mode="json"))
    create_exclusive(place, json.dumps({"plan": document, "digest": fingerprint(document)}).encode())


def recorded_plan(store: Store, trajectory: str) -> DataPlan | None:
    """The plan of a trajectory; None if it has none that can be read."""
    place = join(store.address("trajectory", trajectory), DATA)
    with suppress(OSError, AtelierError, ValueError):
        found = read_object(place, "a data plan")
        if fingerprint(found.get("plan")) == found.get("digest"):
            return parse(DataPlan, found.get("plan"), place)
    return None


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """Steps of a student in which a teacher taught it, and the teacher's steps until the last of them; None =
    a teacher that was finished before.
    """

    student: str
    first: int
    last: int
    teacher_end: int | None


@dataclass(frozen=True, kw_only=True)
class TrainingRead:
    """The part of a training that counts: steps start <= step < end of the last of `trajectories`, trunk
    first. `source`: the input that was read, such as tokens.main. `planned`: a trajectory that has the same
    samples and goes on to the model's end. `left_out`: steps before `end` that were passed over.

    `consumed`: the samples by stream in steps start <= step < `counted_to` without `all_left_out`, as the
    model's record counts them; None without a record. `has_record`: whether there is one: without it, steps
    that were passed over are unknown.
    """

    trajectories: tuple[str, ...]
    planned: str
    start: int
    end: int
    source: str
    left_out: tuple[int, ...] = ()
    all_left_out: tuple[int, ...] = ()
    consumed: Json = field(default=None, compare=False)
    counted_to: int = 0
    has_record: bool = False


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


def trained(
    records: Records, trajectory: str, model: Record | None, until: int | None = None
) -> PartOfTraining:
    """The training that ended on a trajectory: of a model, or before step `until`. `model` may have ended
    later than `until`; its trajectory then may be a branch of this one.
    """
    chain = _chain(records, trajectory)
    mine = {fp: records.get(fp) for fp in chain}
    known = [record for record in mine.values() if record is not None]
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
    first, own = mine[chain[0]], model.parents.get("trajectory", "") if model is not None else ""
    started = whole_of(model.summary.get("started_at")) if model is not None else 0
    is_whole = first is not None and "trunk" not in first.parents
    return PartOfTraining(
        model=model,
        trajectories=tuple(chain),
        planned=own if model is not None and trajectory in _chain(records, own) else trajectory,
        start=whole_of(first.identity.get("start")) if first is not None and is_whole else started,
        end=end,
        parents=parents,
        teacher=teachers[-1] if teachers else "",
        is_frozen=any(record.identity.get("attach") == "frozen" for record in begun),
        problems=tuple(
            Problem(
                fp, f"the record of trajectory {fp[:8]}, which read some of the steps, is missing or damaged"
            )
            for fp, record in mine.items()
            if record is None
        ),
    )


def plan_of(store: Store, records: Records, models: Container[str], read: TrainingRead) -> DataPlan:
    """The data plan of a training: the one that was recorded, or else the one that identity tells, which
    should be compared with `consumed`. `models`: fingerprints of finished models. Raises DataError or
    ConfigError if none is known, or if this code would draw other samples.
    """
    last = records.get(read.planned)
    if last is None:
        raise DataError(f"trajectory {read.planned[:8]}: its record is missing or damaged")
    place, recorded = f"trajectory {last.fingerprint[:8]}", recorded_plan(store, last.fingerprint)
    root = _root(records, models, last)
    if root is None and recorded is None:
        raise DataError(f"{place}: a teacher, which may define its samples, is missing or damaged")
    objectives = (root or last).identity.get("objective")
    check_versions(last.identity, objectives, place)
    if recorded is not None:
        return recorded
    return plan_from(last.identity, last.parents, objectives, end=max(read.end, read.counted_to), place=place)


def _root(records: Records, models: Container[str], trajectory: Record) -> Record | None:
    """The trajectory whose objectives define the rows: the first teacher of one training; None if it is not
    known.
    """
    seen: set[str] = set()
    while (teacher := trajectory.parents.get("teacher")) and teacher not in models:
        seen.add(trajectory.fingerprint)
        found = records.get(teacher)
        if found is None or found.fingerprint in seen:
            return None
        trajectory = found
    return trajectory


def _chain(records: Records, trajectory: str) -> list[str]:
    """The trajectory after the trunks that it branched from, the first trunk first."""
    found = [trajectory] if trajectory else []
    while found and (record := records.get(found[-1])) and (trunk := record.parents.get("trunk")):
        if trunk in found:
            break
        found.append(trunk)
    return found[::-1]
