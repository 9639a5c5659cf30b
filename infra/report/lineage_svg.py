"""Draw a lineage graph as SVG: boxes in layers, edges from parents to children, placed labels."""

import html
import itertools
from dataclasses import dataclass

from atelier.infra.report.lineage_graph import ENDS, Edge, Graph, LineageNode

COLOURS = {  # kind -> (light fill, light line, dark fill, dark line); the box names the kind, too
    "text": ("#eef3f7", "#5b7a93", "#1f2c36", "#7f9db5"),
    "corpus": ("#eef3f7", "#5b7a93", "#1f2c36", "#7f9db5"),
    "tokenizer": ("#eef3f7", "#5b7a93", "#1f2c36", "#7f9db5"),
    "tokens": ("#eef3f7", "#5b7a93", "#1f2c36", "#7f9db5"),
    "labels": ("#eef3f7", "#5b7a93", "#1f2c36", "#7f9db5"),
    "triples": ("#eef3f7", "#5b7a93", "#1f2c36", "#7f9db5"),
    "attributes": ("#eef3f7", "#5b7a93", "#1f2c36", "#7f9db5"),
    "chats": ("#eef3f7", "#5b7a93", "#1f2c36", "#7f9db5"),
    "imitations": ("#eef3f7", "#5b7a93", "#1f2c36", "#7f9db5"),
    "model": ("#fff3df", "#b86b00", "#3a2a10", "#f0a840"),
    "trajectory": ("#fffaf0", "#b86b00", "#2c2416", "#c08a3e"),
    "scores": ("#e9f5ef", "#00795a", "#12302a", "#35c59a"),
    "report": ("#e9f5ef", "#00795a", "#12302a", "#35c59a"),
    "registration": ("#e9f5ef", "#00795a", "#12302a", "#35c59a"),
    "run": ("#f3eef7", "#77519b", "#2b2136", "#b794d6"),
}
MARKER = (
    '<defs><marker id="{mark}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9" markerHeight="9" '
    'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8z" class="tip"/></marker></defs>'
)
BOX_W, BOX_H, MARGIN = 210, 58, 18
LINE = 13  # height of a label's line
TRIES = (0.5, 0.62, 0.38, 0.74, 0.26, 0.84)  # candidate positions of a label along the last bend of its edge


def numbers_of(node: LineageNode, most: int = 3) -> str:
    """The first `most` numbers of a node, as text."""
    words = [f"step {node.step:,}"] if node.step and node.kind in ("model", "trajectory") else []
    words += [node.origin] if node.origin else []
    names = {"eval_loss": "eval loss (windows)", "bits_per_byte": "bits/byte", "too_long": "too long"}
    for key, value in node.numbers.items():
        if key == "loss" and "eval_loss" in node.numbers:
            continue
        words.append(
            f"{names.get(key, key)} {value:.3f}"
            if isinstance(value, float)
            else f"{_short(value)} {names.get(key, key)}"
        )
    return ", ".join(words[:most])


def _short(value: float) -> str:
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if letter == 'k' else size):.3g}{letter}"
    return f"{value:,}"


def layers_of(graph: Graph) -> dict[str, int]:
    """Column of every node: one to the right of its rightmost parent."""
    layer: dict[str, int] = {}
    for fp in graph.order():
        layer[fp] = max((layer[edge.parent] + 1 for edge in graph.parents(fp)), default=0)
    for fp in reversed(graph.order()):  # a node without parents is placed right before its first child
        nexts = [layer[edge.child] for edge in graph.children(fp)]
        if nexts and not graph.parents(fp):
            layer[fp] = min(nexts) - 1
    return layer


# (column, place) pairs of an edge's route; a place is a node or a gap kept free for the edge
Route = list[tuple[int, str]]


def _lay_out(graph: Graph) -> tuple[list[list[str]], list[tuple[Edge, Route]]]:
    """Columns of places, ordered to reduce edge crossings, and each edge's route through them."""
    layer = layers_of(graph)
    columns: list[list[str]] = [[] for _ in range(max(layer.values()) + 1)]
    for fp in graph.order():
        columns[layer[fp]].append(fp)
    routes: list[tuple[Edge, Route]] = []
    for number, edge in enumerate(graph.edges):
        route: Route = [(layer[edge.parent], edge.parent)]
        for column in range(layer[edge.parent] + 1, layer[edge.child]):
            gap = f"gap {number} {column}"
            columns[column].append(gap)
            route.append((column, gap))
        routes.append((edge, [*route, (layer[edge.child], edge.child)]))
    neighbours: dict[str, list[tuple[int, str]]] = {}
    for _, route in routes:
        for (left, a), (right, b) in itertools.pairwise(route):
            neighbours.setdefault(a, []).append((right, b))
            neighbours.setdefault(b, []).append((left, a))
    for sweep in range(8):
        forward = sweep % 2 == 0
        for column in range(len(columns)) if forward else reversed(range(len(columns))):
            beside = column - 1 if forward else column + 1
            if 0 <= beside < len(columns):
                columns[column] = _by_middle(columns[column], columns[beside], beside, neighbours)
    return columns, routes


def _by_middle(
    column: list[str], other: list[str], beside: int, neighbours: dict[str, list[tuple[int, str]]]
) -> list[str]:
    """`column` sorted by the mean position of each place's neighbours in the adjacent column."""
    position = {place: index / max(1, len(other) - 1) for index, place in enumerate(other)}
    own = {place: index / max(1, len(column) - 1) for index, place in enumerate(column)}

    def middle(place: str) -> float:
        found = [position[b] for at, b in neighbours.get(place, []) if at == beside]
        return sum(found) / len(found) if found else own[place]

    return sorted(column, key=middle)


@dataclass(frozen=True)
class BoxShape:
    """Sizes along the direction from parents to children, and across it."""

    is_upright: bool
    box: tuple[int, int]  # along, across
    gap: int  # between two layers
    slots: tuple[int, int]  # across: of a passing edge, of a box

    def xy(self, along: float, across: float) -> tuple[float, float]:
        return (across, along) if self.is_upright else (along, across)


LYING = BoxShape(is_upright=False, box=(BOX_W, BOX_H), gap=132, slots=(34, BOX_H + 26))
UPRIGHT = BoxShape(is_upright=True, box=(BOX_H, BOX_W), gap=74, slots=(52, BOX_W + 26))

Box = tuple[float, float, float, float]  # left, top, width, height


def to_svg(graph: Graph, widest: int = 0, mark: str = "tip") -> str:
    """A self-contained SVG that follows the reader's light or dark setting, from left to right or from top to
    bottom, whichever is narrower. One wider than `widest` has no fixed size: it scales to its container.
    `mark` is the arrowhead's id, unique for each SVG of a page.
    """
    graph = graph.without_shortcuts()
    columns, routes = _lay_out(graph)
    shape = min((UPRIGHT, LYING), key=lambda one: _size(one, columns, graph)[0])
    at = _places(shape, columns, graph)
    width, height = _size(shape, columns, graph)
    name = html.escape(graph.nodes[graph.focus].name, quote=True)
    size = f'viewBox="0 0 {width:.0f} {height:.0f}"'
    if not widest or width <= widest:
        size += f' width="{width:.0f}" height="{height:.0f}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="lineage" {size} role="img" '
        f'aria-label="lineage of {name}">',
        f"<style>{_style()}</style>",
        MARKER.replace("{mark}", mark),
    ]
    taken = [_corner(shape, at[fp]) for fp in graph.nodes]
    lines, labels = [], []
    for edge, route in routes:
        points = [at[place] for _, place in route]
        strong = " strong" if edge.label.startswith("teacher") else ""
        lines.append(f'<path class="edge{strong}" d="{_way(shape, points)}" marker-end="url(#{mark})"/>')
        # scores and reports: the parent's box has the name
        text = edge.label.split(".")[0] if graph.nodes[edge.child].kind in ENDS else edge.label
        labels.append(_label(text, strong, _spots(shape, points), taken))
    # labels are drawn above all edges
    parts += (
        lines
        + labels
        + [_box(graph.nodes[fp], _corner(shape, at[fp]), fp == graph.focus) for fp in graph.nodes]
    )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _across(shape: BoxShape, column: list[str], graph: Graph) -> int:
    return sum(shape.slots[place in graph.nodes] for place in column)


def _size(shape: BoxShape, columns: list[list[str]], graph: Graph) -> tuple[float, float]:
    """Width and height of the picture."""
    along = 2 * MARGIN + len(columns) * shape.box[0] + (len(columns) - 1) * shape.gap
    return shape.xy(along, 2 * MARGIN + max(_across(shape, column, graph) for column in columns))


def _places(shape: BoxShape, columns: list[list[str]], graph: Graph) -> dict[str, tuple[float, float]]:
    """(start along, middle across) of every place."""
    at: dict[str, tuple[float, float]] = {}
    most = max(_across(shape, column, graph) for column in columns)
    for index, column in enumerate(columns):
        across = MARGIN + (most - _across(shape, column, graph)) / 2
        for place in column:
            room = shape.slots[place in graph.nodes]
            at[place] = (MARGIN + index * (shape.box[0] + shape.gap), across + room / 2)
            across += room
    return at


def _corner(shape: BoxShape, place: tuple[float, float]) -> Box:
    x, y = shape.xy(place[0], place[1] - shape.box[1] / 2)
    return x, y, BOX_W, BOX_H


def _way(shape: BoxShape, points: list[tuple[float, float]]) -> str:
    """SVG path of an edge from its parent past other boxes to its child."""

    def at(along: float, across: float) -> str:
        return "{:.0f} {:.0f}".format(*shape.xy(along, across))

    along, across = points[0][0] + shape.box[0], points[0][1]
    path, bend = f"M{at(along, across)}", shape.gap / 2
    for index, (begin, middle) in enumerate(points[1:], 1):
        path += f" C{at(along + bend, across)} {at(begin - bend, middle)} {at(begin, middle)}"
        along, across = begin, middle
        if index < len(points) - 1:
            along += shape.box[0]
            path += f" L{at(along, across)}"
    return path


def _spots(shape: BoxShape, points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Candidate positions of an edge's label, best first: on the bend before its child."""
    start, (end, there) = points[-1][0] - shape.gap, points[-1]
    here = points[-2][1]
    spots = []
    for t in TRIES:
        near, far = (1 - t) ** 2, t**2
        ease = far * (3 - 2 * t)  # a cubic curve that is level at both ends
        along = start * near * (1 + 2 * t) + 3 * near * t * shape.gap / 2 - 3 * far * (1 - t) * shape.gap / 2
        along += end * ease
        spots.append(shape.xy(along, here + (there - here) * ease))
    return spots


def _label(label: str, strong: str, spots: list[tuple[float, float]], taken: list[Box]) -> str:
    """Draw the label at the spot that overlaps `taken` least (the first of equals), and add it to `taken`."""
    words = label.replace(" @ ", " @\n").split("\n")
    width, height = 6.4 * max(map(len, words)) + 6, LINE * len(words) + 2

    def room(spot: tuple[float, float]) -> Box:
        return spot[0] - width / 2, spot[1] - height / 2, width, height

    best = min(spots, key=lambda spot: sum(_overlap(room(spot), other) for other in taken))
    taken.append(room(best))
    x, top = best[0], best[1] + 4 - LINE * (len(words) - 1) / 2
    return "".join(
        f'<text class="label{strong}" x="{x:.0f}" y="{top + LINE * row:.0f}">{html.escape(word)}</text>'
        for row, word in enumerate(words)
    )


def _overlap(one: Box, other: Box) -> float:
    wide = min(one[0] + one[2], other[0] + other[2]) - max(one[0], other[0])
    high = min(one[1] + one[3], other[1] + other[3]) - max(one[1], other[1])
    return max(wide, 0.0) * max(high, 0.0)


def _box(node: LineageNode, corner: Box, is_focus: bool) -> str:
    x, y, _, _ = corner
    title = f"{node.kind} {node.name}\n{node.fingerprint}\n{numbers_of(node)}"
    kind = node.kind if node.kind in COLOURS else "run"
    texts = [
        ("name", 20, _cut(node.name.removesuffix(f" {node.kind}"), 22)),
        ("small", 35, f"{node.kind} {node.short}"),
        ("small", 49, _cut(numbers_of(node, 2), 36)),
    ]
    lines = "".join(
        f'<text class="{style}" x="{x + 10:.0f}" y="{y + down:.0f}">{html.escape(text)}</text>'
        for style, down, text in texts
    )
    return (
        f'<g class="{kind}{" focus" if is_focus else ""}"><title>{html.escape(title)}</title>'
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{BOX_W}" height="{BOX_H}" rx="8"/>{lines}</g>'
    )


def _cut(text: str, size: int) -> str:
    return text if len(text) <= size else text[: size - 1] + "…"


STYLE = """
.lineage text{font-family:system-ui,sans-serif;fill:#1c2126}
.lineage .name{font-size:14px;font-weight:600}
.lineage .small{font-size:11px;fill:#4a545d}
.lineage .label{font-size:11px;text-anchor:middle;fill:#4a545d}
.lineage .label{paint-order:stroke;stroke:#fff;stroke-width:6px;stroke-linejoin:round}
.lineage .label.strong{fill:#8f5200;font-weight:600}
.lineage .edge{fill:none;stroke:#8a949c;stroke-width:1.4}
.lineage .edge.strong{stroke:#b86b00;stroke-width:2.4}
.lineage .tip{fill:#8a949c}
.lineage rect{stroke-width:1.4}
.lineage .focus rect{stroke-width:3.2}
"""
DARK = """
.lineage text{fill:#e8ecef}
.lineage .small,.lineage .label{fill:#a9b4bc}
.lineage .label{stroke:#15191c}
.lineage .label.strong{fill:#f0a840}
.lineage .edge{stroke:#75808a}
.lineage .edge.strong{stroke:#f0a840}
.lineage .tip{fill:#75808a}
"""


def _style() -> str:
    light = "".join(f".lineage .{kind} rect{{fill:{c[0]};stroke:{c[1]}}}\n" for kind, c in COLOURS.items())
    dark = "".join(f".lineage .{kind} rect{{fill:{c[2]};stroke:{c[3]}}}\n" for kind, c in COLOURS.items())
    return f"{STYLE}{light}@media (prefers-color-scheme:dark){{{DARK}{dark}}}"
