"""Every route by which text came to a model: from records alone, for an audit.

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

What the records say, and where:

- A model's own training: `parents.trajectory` and `identity.step`, the step at which it ended. A trajectory's
  `parents.trunk` and `identity.trunk_step` lead to the trunk that read the steps before; one stream of
  samples goes through all of them. Its start is `identity.start` of the first, or 0.
- Its data: the parents of its trajectories besides trunk, init and teachers: tokens, labels, chats, triples,
  attributes, imitations by source, and the tokenizer.
- A student's teacher: `parents.teacher`, a trajectory of the same training or a finished model;
  `parents.teacher.<objective>`, finished models of single objectives. When it taught:
  `summary.teacher_steps`, the teacher's steps at the first and last lesson; [] if the gate never opened. At
  step s the student learned from the teacher's weights after s steps, so that the teacher had read the steps
  before s. A frozen teacher, or one in whose stead a finished model taught (no teacher_steps), had read all.
- A teacher that is a student itself taught what it had learned by then: its lessons are cut at that step.
- `parents.init`: a finished model. `parents.model` of a conversion, with `others` by role.
- A corpus with `parents.model` was written by it. Its text has the beginnings that were continued, so the
  corpus before is not a route of its own. Imitations likewise. Conversations have a model as a parent only
  for its template.
- Adopted models, adapters and loaded tokenizers have no text among their parents: unknown, never "none".
- Held-out documents are measured, not learned; a curation's classifiers choose documents and teach nothing.
  Neither is a route.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from atelier.engine.config.document import whole_of
from atelier.engine.config.record import Record
from atelier.infra.report.lineage import Index
from atelier.infra.store.data_plans import Lesson, PartOfTraining, TrainingRead, trained

TEXTS = ("corpus", "labels", "chats", "imitations", "triples", "attributes")
NOT_DATA = ("trunk", "teacher", "init", "trajectory", "adapter", "tokenizer")


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


@dataclass(frozen=True)
class _Way:
    """The way so far."""

    chain: tuple[Waypoint, ...]
    via: tuple[Hop, ...] = ()
    lessons: tuple[Lesson, ...] = ()
    training: TrainingRead | None = None

    def to(self, label: str, fingerprint: str, record: Record | None, *hops: Hop) -> "_Way":
        link = Waypoint(label, fingerprint, record)
        return replace(self, chain=(*self.chain, link), via=(*self.via, *hops))


def routes(index: Index, model: Record) -> list[TextRoute]:
    """All routes of text to a model, or to an adapter and the model that has it."""
    return _Walk(index).all(model)


class _Walk:
    def __init__(self, index: Index) -> None:
        self._index = index
        self._seen: set[tuple[object, ...]] = set()

    def all(self, model: Record) -> list[TextRoute]:
        """Each route once; of several with the same kinds of hops to one end, the first."""
        return list(self._made(model, _Way((Waypoint("model", model.fingerprint, model),))))

    def _found(self, way: _Way, kind: RouteKind | None = None, unknown: str = "") -> Iterator[TextRoute]:
        end, read = way.chain[-1], way.training
        key = (way.via, end.fingerprint, kind, unknown, read, way.lessons)
        if key in self._seen:
            return
        self._seen.add(key)
        own: RouteKind = way.via[0] if way.via else "own"
        yield TextRoute(
            kind=kind or own,
            via=way.via,
            chain=way.chain,
            lessons=way.lessons,
            training=way.training,
            unknown=unknown,
        )

    def _to(self, way: _Way, label: str, fingerprint: str, *hops: Hop) -> Iterator[TextRoute]:
        """The routes through a parent."""
        if fingerprint in {link.fingerprint for link in way.chain}:
            yield from self._found(way, "unreadable", f"{label} {fingerprint[:8]} leads back to itself")
            return
        record = self._index.records.get(fingerprint)
        way = way.to(label, fingerprint, record, *hops)
        if record is None:
            yield from self._found(
                way, "unreadable", f"the record of {label} {fingerprint[:8]} is missing or damaged"
            )
        elif record.kind in ("model", "adapter"):
            yield from self._made(record, replace(way, training=None))
        elif record.kind in TEXTS:
            yield from self._text(record, way)
        elif record.kind == "tokens":
            yield from self._parts(record, way, "corpus")
        elif record.kind == "answers":
            yield from self._parts(record, way, "tokens")
            yield from self._parts(record, replace(way, training=None), "model", "teacher")
        elif record.kind == "tokenizer":
            yield from self._tokenizer(record, replace(way, training=None))
        else:
            unknown = f"{record.name} is of kind {record.kind}, of which an audit knows nothing"
            yield from self._found(way, "unreadable", unknown)

    def _parts(self, record: Record, way: _Way, label: str, *hops: Hop) -> Iterator[TextRoute]:
        """The routes through a parent that every record of this kind has."""
        if label in record.parents:
            yield from self._to(way, label, record.parents[label], *hops)
        else:
            unknown = f"{record.kind} {record.name} has no {label} among its parents"
            yield from self._found(way, "unreadable", unknown)

    def _text(self, record: Record, way: _Way) -> Iterator[TextRoute]:
        yield from self._found(way)
        wrote: dict[str, Hop] = {"corpus": "written", "imitations": "imitated"}
        if record.kind in wrote and "model" in record.parents:
            yield from self._to(way, "model", record.parents["model"], wrote[record.kind])

    def _tokenizer(self, record: Record, way: _Way) -> Iterator[TextRoute]:
        sources = {key: fp for key, fp in record.parents.items() if key.startswith("corpus")}
        if not sources:
            unknown = f"tokenizer {record.name} was not learned here; its text is unknown"
            yield from self._found(way, "adopted", unknown)
        for key, fp in sorted(sources.items()):
            yield from self._to(way, key, fp)
        if "extends" in record.parents:
            yield from self._to(way, "extends", record.parents["extends"])

    def _made(self, record: Record, way: _Way) -> Iterator[TextRoute]:
        """The routes of a model or adapter."""
        parents = record.parents
        if "trajectory" in parents:
            yield from self._trained(
                trained(self._index.trajectory_records, parents["trajectory"], record), way
            )
            return
        if record.kind == "adapter" and "model" in parents:
            yield from self._to(way, "model", parents["model"])
        elif "model" in parents:
            yield from self._converted(record, way)
        elif "init" in parents or "base" in parents:
            yield from self._to(way, "base", parents.get("init", parents.get("base", "")), "init")
            yield from self._adopted(record, way)
        else:
            yield from self._adopted(record, way)
        if "tokenizer" in parents:
            yield from self._to(way, "tokenizer", parents["tokenizer"], "tokenizer")

    def _adopted(self, record: Record, way: _Way) -> Iterator[TextRoute]:
        source = record.summary.get("source")
        where = f" ({source})" if isinstance(source, str) else ""
        unknown = f"{record.kind} {record.name} comes from outside{where}; what it had read is unknown"
        yield from self._found(way, "adopted", unknown)

    def _converted(self, record: Record, way: _Way) -> Iterator[TextRoute]:
        for key, fp in sorted(record.parents.items()):
            if key.partition(".")[0] == "tokens":  # of which a rule read some
                yield from self._to(way, key, fp)
            elif key != "tokenizer":
                yield from self._to(way, key, fp, "init")

    def _trained(self, read: PartOfTraining, way: _Way) -> Iterator[TextRoute]:
        for problem in read.problems:
            lost = way.to("trajectory", problem.fingerprint, None)
            yield from self._found(lost, "unreadable", problem.words)
        for key, fp in sorted(read.parents.items()):
            first = key.partition(".")[0]
            if key == "tokenizer":
                yield from self._to(way, key, fp, "tokenizer")
            elif key == "init":
                yield from self._to(way, key, fp, "init")
            elif key == "adapter":
                yield from self._to(way, key, fp)
            elif first == "teacher" and key != "teacher":
                yield from self._taught(read, way, key, fp)
            elif first not in NOT_DATA:
                yield from self._to(replace(way, training=read.reading(key)), key, fp)
        if read.teacher:
            yield from self._taught(read, way, "teacher", read.teacher)

    def _taught(self, read: PartOfTraining, way: _Way, key: str, fp: str) -> Iterator[TextRoute]:
        """The routes through a teacher, as far as it had come in the last lesson."""
        lesson = read.lesson(fp in self._index.trajectory_records)
        if lesson is None:
            return
        way = replace(way, lessons=(*way.lessons, lesson))
        trajectory = self._index.trajectory_records.get(fp)
        if trajectory is None:
            yield from self._to(way, key, fp, "teacher")
            return
        model = self._index.model_of(fp, read.model)
        if {fp, model and model.fingerprint} & {link.fingerprint for link in way.chain}:
            yield from self._found(way, "unreadable", f"teacher {fp[:8]} leads back to itself")
            return
        shown = way.to(key, model.fingerprint if model else fp, model or trajectory, "teacher")
        end = lesson.teacher_end
        if end is None:  # frozen: as it ended
            end = whole_of(model.identity.get("step")) if model else None
        if end is None:
            yield from self._found(shown, "unreadable", f"no record tells where teacher {fp[:8]} ended")
            return
        yield from self._trained(trained(self._index.trajectory_records, fp, model, end), shown)
