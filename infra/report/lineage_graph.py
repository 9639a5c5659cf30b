"""A lineage graph and its reduction for display; infra/report/lineage.py reads it from a store."""

import graphlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

ENDS = ("scores", "exam", "audit", "word_index", "report", "registration")
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
    origin: str = ""  # of adopted models and adapters

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
        """A graph for display: without scores, reports and registrations, with text artifacts in one box; of
        many childless siblings only the first few, and the number of the others.
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
        """A graph for display with text artifacts that derive from each other (corpora, tokenizer, tokens,
        triples ...) as one node of kind "text". Unchanged if the focus is one of them.
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
        edges: dict[Edge, None] = {}
        for edge in self.edges:
            parent, child = box[edge.parent], box[edge.child]
            if parent != child:
                label = "text" if nodes[parent].kind == "text" else edge.label
                edges[Edge(parent, child, label)] = None
        return Graph(focus=self.focus, nodes=nodes, edges=tuple(edges))

    def parents(self, fingerprint: str) -> list[Edge]:
        return [edge for edge in self.edges if edge.child == fingerprint]

    def children(self, fingerprint: str) -> list[Edge]:
        return [edge for edge in self.edges if edge.parent == fingerprint]

    def without_shortcuts(self) -> "Graph":
        """A graph for display without redundant edges: from a tokenizer that is also reached through tokens;
        from text, chats and imitations to a model whose teacher or initial model had them; and to scores,
        reports and registrations that are also reached through a model.
        """
        nexts = _nexts(self.edges, up=False)

        def is_plain(edge: Edge) -> bool:
            kind = self.nodes[edge.parent].kind
            is_data = edge.label == "tokenizer" or kind in ("text", "chats", "imitations")
            may_go = is_data or self.nodes[edge.child].kind in ENDS
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


def _text_of(nodes: list[LineageNode]) -> LineageNode:
    """One node for corpora and derived data: names, documents, tokens and vocabulary."""
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


def reach(start: str, edges: Iterable[Edge], *, up: bool) -> set[str]:
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
