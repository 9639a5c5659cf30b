"""Lineage graph of artifacts, their ancestors and descendants, built only from the store's records and
trajectories.
"""

import graphlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

from atelier.engine.config.document import whole_of
from atelier.engine.config.error import AtelierError, DamageError, nearest
from atelier.engine.config.record import Record
from atelier.engine.config.run_file import SegmentAddress
from atelier.engine.io.storage import join, names
from atelier.infra.store import trajectory as trajectories
from atelier.infra.store.run_manifest import ENDING, FOLDER, RunManifest, read_manifest
from atelier.infra.store.store import Store

NUMBERS = (
    "eval_loss",
    "loss",
    "bits_per_byte",
    "accuracy",
    "documents",
    "params",
    "tokens",
    "bytes",
    "vocab",
)
ENDS = ("scores", "report", "registration")
TEXT = ("corpus", "tokenizer", "tokens", "triples", "attributes", "labels")
SIBLINGS = 4  # shown of one family in a brief graph


@dataclass(frozen=True)
class LineageNode:
    """One artifact, a trajectory that has no model yet, or a run."""

    fingerprint: str
    kind: str
    name: str
    step: int | None = None
    numbers: dict[str, float] = field(default_factory=dict)

    @property
    def short(self) -> str:
        return self.fingerprint[:8]


@dataclass(frozen=True)
class Edge:
    """A labelled edge between two fingerprints."""

    parent: str
    child: str
    label: str


@dataclass(frozen=True)
class Graph:
    """`focus` with all its ancestors and descendants; edges lead from parent to child."""

    focus: str
    nodes: dict[str, LineageNode]
    edges: tuple[Edge, ...]

    def only(self, kinds: Iterable[str]) -> "Graph":
        """The subgraph of the focus and the nodes of these kinds."""
        kept = {fp: node for fp, node in self.nodes.items() if node.kind in set(kinds) or fp == self.focus}
        edges = tuple(edge for edge in self.edges if edge.parent in kept and edge.child in kept)
        return Graph(focus=self.focus, nodes=kept, edges=edges)

    def near(self) -> "Graph":
        """The focus with all its ancestors and its direct children, in brief."""
        up = _walk(_nexts(self.edges, up=True), [edge.parent for edge in self.parents(self.focus)])
        down = {edge.child for edge in self.children(self.focus)}
        kept = {fp: node for fp, node in self.nodes.items() if fp in up | down | {self.focus}}
        edges = tuple(edge for edge in self.edges if edge.parent in kept and edge.child in kept)
        return Graph(focus=self.focus, nodes=kept, edges=edges).brief()

    def brief(self) -> "Graph":
        """A graph for display: without scores, reports and registrations, text in one box; of many siblings
        without children only the first few and the number of the others.
        """
        graph = self.only({node.kind for node in self.nodes.values()} - set(ENDS)).folded()
        groups: dict[tuple[str, ...], list[str]] = {}
        for fp, node in graph.nodes.items():
            if fp != graph.focus and graph.parents(fp) and not graph.children(fp):
                family = (node.kind, *sorted({edge.parent for edge in graph.parents(fp)}))
                groups.setdefault(family, []).append(fp)
        nodes = dict(graph.nodes)
        for group in groups.values():
            group.sort(key=lambda fp: graph.nodes[fp].name)
            if len(group) > SIBLINGS:
                one, *others = group[SIBLINGS - 1 :]
                nodes[one] = LineageNode(
                    fingerprint=one, kind=nodes[one].kind, name=f"and {len(others) + 1} more"
                )
                nodes = {fp: node for fp, node in nodes.items() if fp not in others}
        edges = tuple(edge for edge in graph.edges if edge.parent in nodes and edge.child in nodes)
        return Graph(focus=graph.focus, nodes=nodes, edges=edges)

    def folded(self) -> "Graph":
        """A graph for display: artifacts of text that come from each other (corpora, their tokenizer, tokens,
        triples ...) as one node of kind "text". Unchanged where the focus is one of them.
        """
        if self.nodes[self.focus].kind in TEXT:
            return self
        groups: list[set[str]] = []
        for fp in (fp for fp, node in self.nodes.items() if node.kind in TEXT):
            mine = {fp, *(edge.parent for edge in self.parents(fp)), *(e.child for e in self.children(fp))}
            mine = {one for one in mine if self.nodes[one].kind in TEXT}
            touched = [group for group in groups if group & mine]
            groups = [group for group in groups if group not in touched] + [mine.union(*touched)]
        nodes, box = dict(self.nodes), {fp: fp for fp in self.nodes}
        for group in (group for group in groups if len(group) > 1):
            one = _text_of([self.nodes[fp] for fp in sorted(group)])
            nodes = {fp: node for fp, node in nodes.items() if fp not in group} | {one.fingerprint: one}
            box |= dict.fromkeys(group, one.fingerprint)
        edges: dict[tuple[str, str], Edge] = {}
        for edge in self.edges:
            parent, child = box[edge.parent], box[edge.child]
            if parent != child:
                label = "text" if nodes[parent].kind == "text" else edge.label
                edges.setdefault((parent, child), Edge(parent, child, label))
        return Graph(focus=self.focus, nodes=nodes, edges=tuple(edges.values()))

    def parents(self, fingerprint: str) -> list[Edge]:
        return [edge for edge in self.edges if edge.child == fingerprint]

    def children(self, fingerprint: str) -> list[Edge]:
        return [edge for edge in self.edges if edge.parent == fingerprint]

    def without_shortcuts(self) -> "Graph":
        """A graph for display without redundant edges: from a tokenizer that is also reached through tokens,
        and to scores, reports and registrations that are also reached through a model.
        """
        nexts = _nexts(self.edges, up=False)

        def is_plain(edge: Edge) -> bool:
            may_go = edge.label == "tokenizer" or self.nodes[edge.child].kind in ENDS
            return not may_go or edge.child not in _walk(
                nexts, [child for child in nexts[edge.parent] if child != edge.child]
            )

        return replace(self, edges=tuple(edge for edge in self.edges if is_plain(edge)))

    def order(self) -> list[str]:
        """Fingerprints in topological order, parents first."""
        sorter: graphlib.TopologicalSorter[str] = graphlib.TopologicalSorter(
            {fp: () for fp in sorted(self.nodes)}
        )
        for edge in self.edges:
            sorter.add(edge.child, edge.parent)
        return list(sorter.static_order())


class Index:
    """All records and trajectories of a store, read once."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.records = {record.fingerprint: record for record in store.records()}
        self.trajectory_records: dict[str, Record] = {}
        for short in names(join(store.root, "trajectory")):
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
        """Models whose teacher is `model`, oldest first."""
        chain = set(self.chain(model.parents.get("trajectory", "")))
        found = [
            r
            for r in self.records.values()
            if r.kind == "model" and r.parents.get("teacher") in chain and self.teacher(r) == model
        ]
        return sorted(found, key=lambda r: r.provenance.get("ended", 0))

    def teacher(self, model: Record) -> Record | None:
        """The model of the trajectory that `model` learned from."""
        trajectory = model.parents.get("teacher", "")
        return self.model_of(trajectory, model) if trajectory else None


def _text_of(nodes: list[LineageNode]) -> LineageNode:
    """One node for corpora and what was made of them: their names, documents, tokens and vocabulary."""
    corpora = [node for node in nodes if node.kind == "corpus"] or nodes
    found = {
        key: sum(node.numbers.get(key, 0) for node in nodes if node.kind == kind)
        for key, kind in (("documents", "corpus"), ("tokens", "tokens"), ("vocab", "tokenizer"))
    }
    return LineageNode(
        fingerprint=corpora[0].fingerprint,
        kind="text",
        name=", ".join(dict.fromkeys(node.name for node in corpora)),
        numbers={key: number for key, number in found.items() if number},
    )


def find_trajectory(store: Store, fingerprint: str) -> Record | None:
    """The record of a trajectory, written when it began; None when there is none or it is damaged."""
    try:
        return trajectories.read_trajectory(store, fingerprint)
    except (FileNotFoundError, NotADirectoryError, DamageError):
        return None


def trajectory_start(trajectory_record: Record) -> int:
    """The step after which a trajectory's own steps begin."""
    identity = trajectory_record.identity
    return whole_of(identity.get("trunk_step", identity.get("start")))


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
    Raises AtelierError when nothing is called so.
    """
    return graph_of(Index(store), word)


def graph_of(index: Index, word: str) -> Graph:
    drawing = _Drawing(index)
    focus = drawing.find(word)
    wanted = {focus} | _reach(focus, drawing.edges, up=True) | _reach(focus, drawing.edges, up=False)
    edges = [edge for edge in drawing.edges if edge.parent in wanted and edge.child in wanted]
    return Graph(focus=focus, nodes={fp: drawing.nodes[fp] for fp in sorted(wanted)}, edges=tuple(edges))


class _Drawing:
    """Nodes and edges of a whole store; a trajectory with models is replaced by its model."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.nodes = {fp: node_of(record) for fp, record in index.records.items()}
        unfinished = [fp for fp in index.trajectory_records if not index.models(fp)]
        self.nodes |= {fp: node_of(index.trajectory_records[fp]) for fp in unfinished}
        edges: dict[tuple[str, str], str] = {}
        for fp in [*index.records, *unfinished]:
            for parent, label in self._parents(fp):
                if parent in self.nodes and parent != fp:
                    edges.setdefault((parent, fp), label)
        self.edges = [Edge(parent, child, label) for (parent, child), label in sorted(edges.items())]

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
        until = int(record.summary.get("step", 0))
        for older in self.index.chain(trajectory) if trajectory else []:
            yield from self._through(older, until, record)
            trajectory_record = self.index.trajectory_records.get(older)
            until = trajectory_start(trajectory_record) if trajectory_record else 0

    def _through(self, trajectory: str, until: int, record: Record) -> Iterable[tuple[str, str]]:
        """(parent, label) of a model from a trajectory that it followed to step `until`: the trajectory's
        data, and models that ended on the way.
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
        model = self.index.model_of(trajectory, child)
        return model.fingerprint if model is not None else trajectory

    def find(self, word: str) -> str:
        """The node that `word` means. A run is added as a node, the parent of its products."""
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
        if "begin so" in str(error):
            return error
        runs = [name.removesuffix(".json") for name in names(join(self.index.store.root, "runs"))]
        near = nearest(word, {node.name for node in self.nodes.values()} | set(runs))
        way_out = (
            f"; did you mean {near}?" if near else "; `atelier models` and `atelier runs` list what there is"
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
    """The manifest of a run, by its id (8 or more of its characters); None when no run is called so."""
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
        fingerprint=record.fingerprint, kind=record.kind, name=record.name, step=step, numbers=numbers
    )


def step_of(record: Record) -> int | None:
    """The step that a model ended at, of its summary or else of its identity."""
    step = record.summary.get("step", record.identity.get("step"))
    return step if isinstance(step, int) else None


def _reach(start: str, edges: Iterable[Edge], *, up: bool) -> set[str]:
    nexts = _nexts(edges, up=up)
    return _walk(nexts, nexts.get(start, []))


def _nexts(edges: Iterable[Edge], *, up: bool) -> dict[str, list[str]]:
    nexts: dict[str, list[str]] = {}
    for edge in edges:
        here, there = (edge.child, edge.parent) if up else (edge.parent, edge.child)
        nexts.setdefault(here, []).append(there)
    return nexts


def _walk(nexts: dict[str, list[str]], first: list[str]) -> set[str]:
    found = set(first)
    waiting = list(first)
    while waiting:
        for fp in nexts.get(waiting.pop(), []):
            if fp not in found:
                found.add(fp)
                waiting.append(fp)
    return found
