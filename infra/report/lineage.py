"""Lineage graph of artifacts, their ancestors and descendants, built only from the store's records and
trajectories.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property

from atelier.engine.config.error import AtelierError, DamageError, nearest, printable
from atelier.engine.config.record import Record
from atelier.engine.config.run_file import SegmentAddress
from atelier.engine.io.storage import join, names
from atelier.infra.report.lineage_graph import Edge, Graph, LineageNode, reach
from atelier.infra.store import trajectory as trajectories
from atelier.infra.store.run_manifest import ENDING, FOLDER, RunManifest, read_manifest
from atelier.infra.store.store import Store
from atelier.infra.store.trajectory import trajectory_start

NUMBERS = (
    "eval_loss",
    "loss",
    "bits_per_byte",
    "accuracy",
    "documents",
    "conversations",
    "cut",
    "too_long",
    "params",
    "tokens",
    "bytes",
    "vocab",
)


class Index:
    """All records and trajectories of a store, read once."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.records = {record.fingerprint: record for record in store.records()}
        self.trajectory_records: dict[str, Record] = {}
        for short in store.shorts("trajectory"):
            trajectory_record = find_trajectory(store, short)
            if trajectory_record is not None:
                self.trajectory_records[trajectory_record.fingerprint] = trajectory_record

    def chain(self, trajectory: str) -> list[str]:
        """The trajectory and the trunks it branched from, nearest first."""
        result = [trajectory]
        while (
            trajectory_record := self.trajectory_records.get(result[-1])
        ) is not None and "trunk" in trajectory_record.parents:
            result.append(trajectory_record.parents["trunk"])
        return result

    @cached_property
    def _models(self) -> dict[str, list[tuple[int, Record]]]:
        found: dict[str, list[tuple[int, Record]]] = {}
        for record in self.records.values():
            if record.kind == "model" and "trajectory" in record.parents:
                for distance, trajectory in enumerate(self.chain(record.parents["trajectory"])):
                    found.setdefault(trajectory, []).append((distance, record))
        return found

    def models(self, trajectory: str) -> list[Record]:
        """Models trained through the trajectory: those that ended on it first, then the newest."""
        found = self._models.get(trajectory, [])
        return [
            record
            for _, record in sorted(found, key=lambda pair: (pair[0], -pair[1].provenance.get("ended", 0)))
        ]

    def model_of(self, trajectory: str, child: Record | None = None) -> Record | None:
        """The model that stands for the trajectory: one of the same run as `child`, else the first."""
        models = self.models(trajectory)
        run = child.provenance.get("run") if child is not None else None
        return next(
            (m for m in models if run and m.provenance.get("run") == run), models[0] if models else None
        )

    def students(self, model: Record) -> list[Record]:
        """Models of which `model` is a teacher, oldest first."""
        chain = {model.fingerprint, *self.chain(model.parents.get("trajectory", ""))}
        found = [
            r
            for r in self.records.values()
            if r.kind == "model" and not chain.isdisjoint(taught_by(r)) and model in self.teachers(r)
        ]
        return sorted(found, key=lambda r: r.provenance.get("ended", 0))

    def teacher(self, model: Record) -> Record | None:
        """The model that `model` learned from, finished before or that of a trajectory."""
        return next(iter(self.teachers(model)), None) if "teacher" in model.parents else None

    def teachers(self, model: Record) -> list[Record]:
        """All models that `model` learned from, its first teacher first."""
        found = [self.records.get(fp) or self.model_of(fp, model) for fp in taught_by(model)]
        return [record for record in found if record is not None]


def taught_by(model: Record) -> list[str]:
    """Fingerprints of a model's teachers: a trajectory or a model, and models of single objectives."""
    first = [model.parents["teacher"]] if "teacher" in model.parents else []
    others = [fp for key, fp in sorted(model.parents.items()) if key.startswith("teacher.")]
    return list(dict.fromkeys([*first, *others]))


def find_trajectory(store: Store, fingerprint: str) -> Record | None:
    """The record of a trajectory, written at its start; None if it is missing or damaged."""
    try:
        return trajectories.read_trajectory(store, fingerprint)
    except (FileNotFoundError, NotADirectoryError, DamageError):
        return None


def trajectory_segments(store: Store, trajectory: str, end: int) -> tuple[SegmentAddress, ...]:
    """Segments of a trajectory from its first trunk on, the last one up to step `end`."""
    parts: list[SegmentAddress] = []
    fp = trajectory
    while fp:
        trajectory_record = find_trajectory(store, fp)
        start = trajectory_start(trajectory_record) if trajectory_record else 0
        parts.append(
            SegmentAddress(fingerprint=fp, url=store.address("trajectory", fp), start=start, end=end)
        )
        fp, end = trajectory_record.parents.get("trunk", "") if trajectory_record else "", start
    return tuple(reversed(parts))


def teacher_label(record: Record) -> str:
    """'teacher @ steps 200-800' with the teacher's steps on which the student learned, when known."""
    steps = record.summary.get("teacher_steps")
    return f"teacher @ steps {steps[0]}-{steps[1]}" if steps else "teacher"


def lineage(store: Store, word: str) -> Graph:
    """Ancestors and descendants of `word`: a name, an alias, a run's id or 4 or more digits of a fingerprint.
    Raises AtelierError if nothing matches.
    """
    return graph_of(Index(store), word)


def graph_of(index: Index, word: str) -> Graph:
    drawing = _Drawing(index)
    focus = drawing.find(word)
    wanted = {focus} | reach(focus, drawing.edges, up=True) | reach(focus, drawing.edges, up=False)
    edges = [edge for edge in drawing.edges if edge.parent in wanted and edge.child in wanted]
    return Graph(focus=focus, nodes={fp: drawing.nodes[fp] for fp in sorted(wanted)}, edges=tuple(edges))


class _Drawing:
    """Nodes and edges of a whole store; a trajectory with models is replaced by its model."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.nodes = {fp: node_of(record) for fp, record in index.records.items()}
        unfinished = [fp for fp in index.trajectory_records if not index.models(fp)]
        self.nodes |= {fp: node_of(index.trajectory_records[fp]) for fp in unfinished}
        edges: set[Edge] = set()
        for fp in [*index.records, *unfinished]:
            for parent, label in self._parents(fp):
                if parent in self.nodes and parent != fp:
                    edges.add(Edge(parent, fp, label))
        self.edges = sorted(edges, key=lambda edge: (edge.parent, edge.child, edge.label))

    def _parents(self, fp: str) -> Iterable[tuple[str, str]]:
        record = self.index.records.get(fp) or self.index.trajectory_records[fp]
        trajectory = record.parents.get("trajectory", "") if record.kind == "model" else ""
        for role, parent in record.parents.items():
            if role == "teacher":
                yield self._stand_in(parent, record), teacher_label(record)
            elif role == "trunk":
                yield self._stand_in(parent, record), f"trunk @ step {trajectory_start(record)}"
            elif role != "trajectory":
                yield parent, role
            elif record.kind != "model":  # of a checkpoint
                yield self._stand_in(parent, record), f"checkpoint @ step {step_of(record)}"
        until = int(record.summary.get("step", 0))
        for older in self.index.chain(trajectory) if trajectory else []:
            yield from self._through(older, until, record)
            trajectory_record = self.index.trajectory_records.get(older)
            until = trajectory_start(trajectory_record) if trajectory_record else 0

    def _through(self, trajectory: str, until: int, record: Record) -> Iterable[tuple[str, str]]:
        """(parent, label) of a model from a trajectory that it followed to step `until`: the trajectory's
        data, and models that ended on it before.
        """
        trajectory_record = self.index.trajectory_records.get(trajectory)
        yield from (
            (parent, role)
            for role, parent in (trajectory_record.parents if trajectory_record else {}).items()
            if role not in ("teacher", "trunk")
        )
        for other in self.index.models(trajectory):
            step = int(other.summary.get("step", 0))
            if (
                other.parents["trajectory"] == trajectory
                and step <= until
                and other.fingerprint != record.fingerprint
            ):
                yield other.fingerprint, f"trunk @ step {step}"

    def _stand_in(self, trajectory: str, child: Record) -> str:
        model = self.index.records.get(trajectory) or self.index.model_of(trajectory, child)
        return model.fingerprint if model is not None else trajectory

    def find(self, word: str) -> str:
        """The node for `word`. A run becomes a node, the parent of its products."""
        manifest = manifest_of(self.index.store, word)
        if manifest is not None:
            self._add_run(manifest)
            return manifest.id
        if len(word) >= 4:
            matches = [fp for fp in self.index.trajectory_records if fp.startswith(word)]
            if len(matches) == 1 and not any(fp.startswith(word) for fp in self.index.records):
                model = self.index.model_of(matches[0])
                return model.fingerprint if model is not None else matches[0]
        models = [
            r for r in self.index.records.values() if r.kind == "model" and r.name == word.split("@")[0]
        ]
        if models:
            return max(models, key=lambda r: r.provenance.get("ended", 0)).fingerprint
        try:
            return self.index.store.resolve(word).fingerprint
        except AtelierError as error:
            trajectories = sorted(
                node.fingerprint
                for node in self.nodes.values()
                if node.kind == "trajectory" and node.name == word
            )
            if trajectories:
                return trajectories[0]
            raise self._unknown(word, error) from None

    def _unknown(self, word: str, error: AtelierError) -> AtelierError:
        if "begin with it" in str(error):
            return error
        runs = [name.removesuffix(".json") for name in names(join(self.index.store.root, "runs"))]
        near = nearest(word, {node.name for node in self.nodes.values()} | set(runs))
        way_out = (
            f"; did you mean {near}?" if near else "; `atelier models` and `atelier runs` list the names"
        )
        root = self.index.store.root
        hidden = self.index.store.unread()
        return AtelierError(f"no artifact and no run called {word!r} in {root}{way_out}{hidden}")

    def _add_run(self, manifest: RunManifest) -> None:
        run_id = manifest.id
        self.nodes[run_id] = LineageNode(fingerprint=run_id, kind="run", name=manifest.flow)
        for row in manifest.tasks:
            fp = row.fingerprint
            if fp in self.index.trajectory_records and fp not in self.nodes:
                model = self.index.model_of(fp)
                fp = model.fingerprint if model is not None else fp
            if fp in self.nodes and fp != run_id:
                record = self.index.records.get(fp)
                made = record is None or record.provenance.get("run") == run_id
                self.edges.append(Edge(run_id, fp, "made" if made else "used"))


def manifest_of(store: Store, run_id: str) -> RunManifest | None:
    """The manifest of a run, by its id (8 or more of its characters); None if there is no such run."""
    found = [name.removesuffix(ENDING) for name in names(join(store.root, FOLDER)) if name.endswith(ENDING)]
    match = (
        [run_id]
        if run_id in found
        else [name for name in found if len(run_id) >= 8 and name.startswith(run_id)]
    )
    return read_manifest(store, match[0]) if len(match) == 1 else None


def node_of(record: Record) -> LineageNode:
    summary = record.summary
    found = {key: summary.get(key) for key in NUMBERS}
    numbers: dict[str, float] = {k: value for k, value in found.items() if isinstance(value, int | float)}
    step = step_of(record)
    return LineageNode(
        fingerprint=record.fingerprint,
        kind=record.kind,
        name=record.name,
        step=step,
        numbers=numbers,
        origin=origin_of(record),
    )


def origin_of(record: Record) -> str:
    """Origin and licence of an adopted model or adapter; '' for others."""
    summary: Mapping[str, object] = record.summary
    source = summary.get("source")
    if record.kind not in ("model", "adapter") or not isinstance(source, str):
        return ""
    licence = printable(str(summary.get("licence")), 40)
    return f"{printable(str(summary.get('family')), 20)} from {printable(source, 60)}, licence {licence}"


def step_of(record: Record) -> int | None:
    """A model's last step, from its summary or else its identity."""
    step = record.summary.get("step", record.identity.get("step"))
    return step if isinstance(step, int) else None
