"""The ways by which text came to a model, as an audit reports them, and what each training read.

A route leads from a model, over records, to an artifact with text. `kind` says what the text was to the
model:

- own: its training read it. Conversions of a model that read text (to merge or to split weights) count too.
- init: a model that it started from, or was converted or merged from, had read it.
- teacher: a teacher had read it when it taught, or its answers are of this text.
- tokenizer: its tokenizer, or one that this extends, was learned from it.
- written: the model that wrote a text of its training had read it.
- imitated: the model that wrote the imitations of its training had read it.
- adopted: what a model, adapter or tokenizer from outside had read is unknown.
- unreadable: a record on the way is missing or damaged, or not of a kind that is known here.

With several of them on one way, as for a teacher's tokenizer, the first is the kind and `via` names all.
"""

from dataclasses import dataclass, field
from typing import Literal

from atelier.engine.config.base import Json
from atelier.engine.config.data_plan import DataPlan, check_versions, plan_from
from atelier.engine.config.error import DataError
from atelier.engine.config.record import Record
from atelier.infra.report.lineage import Index
from atelier.infra.store.data_plans import recorded_plan

Hop = Literal["init", "teacher", "tokenizer", "written", "imitated"]
RouteKind = Literal["own", "init", "teacher", "tokenizer", "written", "imitated", "adopted", "unreadable"]


@dataclass(frozen=True)
class Waypoint:
    """A station of a route: what it is to the one before (its key in parents), and its record, None when it
    is missing or damaged.
    """

    label: str
    fingerprint: str
    record: Record | None


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


@dataclass(frozen=True, kw_only=True)
class TextRoute:
    """One way to a text. `chain`: from the model on to the artifact with text, or as far as records go.
    `training`: what read it; None where text was read otherwise (by a tokenizer or a conversion) or where no
    trajectory tells. `unknown`: what could not be seen; '' if nothing.
    """

    kind: RouteKind
    via: tuple[Hop, ...]
    chain: tuple[Waypoint, ...]
    lessons: tuple[Lesson, ...] = ()
    training: TrainingRead | None = None
    unknown: str = ""

    @property
    def end(self) -> Waypoint:
        return self.chain[-1]


def plan_of(index: Index, read: TrainingRead) -> DataPlan:
    """The data plan of a training: the one that was recorded, or else the one that identity tells, which
    should be compared with `consumed`. Raises DataError or ConfigError if none is known, or if this code
    would draw other samples.
    """
    last = index.trajectory_records.get(read.planned)
    if last is None:
        raise DataError(f"trajectory {read.planned[:8]}: its record is missing or damaged")
    place = f"trajectory {last.fingerprint[:8]}"
    root = _root(index, last)
    check_versions(last.identity, root.identity.get("objective"), place)
    recorded = recorded_plan(index.store, last.fingerprint)
    if recorded is not None:
        return recorded
    end = max(read.end, read.counted_to)
    return plan_from(last.identity, last.parents, root.identity.get("objective"), end=end, place=place)


def _root(index: Index, trajectory: Record) -> Record:
    """The trajectory whose objectives define the rows: the first teacher of one training."""
    seen = {trajectory.fingerprint}
    while teacher := trajectory.parents.get("teacher"):
        found = index.trajectory_records.get(teacher)
        if found is None and teacher not in index.records:
            raise DataError(
                f"trajectory {trajectory.fingerprint[:8]}: its teacher {teacher[:8]}, which may define its"
                " samples, is missing or damaged"
            )
        if found is None or found.fingerprint in seen:
            return trajectory
        seen.add(found.fingerprint)
        trajectory = found
    return trajectory
