"""A lineage graph as text for the terminal, JSON, SVG, Mermaid and one HTML page."""

import html
import itertools
import json
from typing import Any

from rich.text import Text
from rich.tree import Tree

from infra.lineage import Graph, Node

COLOURS = {  # kind -> (light fill, light line, dark fill, dark line); told apart by the word in the box, too
    "corpus": ("#eef3f7", "#5b7a93", "#1f2c36", "#7f9db5"),
    "tokenizer": ("#eef3f7", "#5b7a93", "#1f2c36", "#7f9db5"),
    "tokens": ("#eef3f7", "#5b7a93", "#1f2c36", "#7f9db5"),
    "labels": ("#eef3f7", "#5b7a93", "#1f2c36", "#7f9db5"),
    "model": ("#fff3df", "#b86b00", "#3a2a10", "#f0a840"),
    "trajectory": ("#fffaf0", "#b86b00", "#2c2416", "#c08a3e"),
    "scores": ("#e9f5ef", "#00795a", "#12302a", "#35c59a"),
    "report": ("#e9f5ef", "#00795a", "#12302a", "#35c59a"),
    "registration": ("#e9f5ef", "#00795a", "#12302a", "#35c59a"),
    "run": ("#f3eef7", "#77519b", "#2b2136", "#b794d6"),
}
MARKER = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9" markerHeight="9" '
    'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8z" class="tip"/></marker></defs>'
)
BOX_W, BOX_H, GAP_X, GAP_Y, MARGIN = 210, 58, 132, 26, 18


def numbers_of(node: Node, most: int = 3) -> str:
    """The few numbers worth showing beside a name."""
    words = [f"step {node.step:,}"] if node.step and node.kind in ("model", "trajectory") else []
    names = {"eval_loss": "held-out loss", "bits_per_byte": "bits/byte"}
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


# text


def to_tree(graph: Graph) -> Tree:
    """For rich: ancestors, the thing itself, descendants. What stands on the page already is not spread out
    again.
    """
    graph = graph.without_shortcuts()
    tree = Tree("", hide_root=True, guide_style="dim")
    seen: set[str] = set()
    if graph.parents(graph.focus):
        above = tree.add(Text("comes from", style="dim"))
        _branch(graph, graph.focus, above, seen, up=True)
    tree.add(_line(graph.nodes[graph.focus], "", bold=True))
    if graph.children(graph.focus):
        below = tree.add(Text("leads to", style="dim"))
        _branch(graph, graph.focus, below, seen, up=False)
    return tree


def _branch(graph: Graph, fp: str, tree: Tree, seen: set[str], *, up: bool) -> None:
    place = {other: number for number, other in enumerate(graph.order())}
    for edge in sorted(
        graph.parents(fp) if up else graph.children(fp), key=lambda e: place[e.parent if up else e.child]
    ):
        other = edge.parent if up else edge.child
        again = other in seen
        twig = tree.add(
            _line(graph.nodes[other], f"{edge.label}: " if up else f"{edge.label} → ", again=again)
        )
        if not again:
            seen.add(other)
            _branch(graph, other, twig, seen, up=up)


def _line(node: Node, label: str, *, bold: bool = False, again: bool = False) -> Text:
    text = Text()
    if label:
        text.append(label, style="bold yellow" if label.startswith("teacher") else "cyan")
    text.append(node.name, style="bold" if bold else "")
    text.append(f"  {node.kind} {node.short}", style="dim")
    if again:
        text.append("  (see above)", style="dim")
    elif numbers_of(node):
        text.append(f"  {numbers_of(node)}")
    return text


def to_json(graph: Graph) -> dict[str, Any]:
    """Plain data: nodes in an order in which every parent comes first."""
    nodes = [vars(graph.nodes[fp]) for fp in graph.order()]
    return {"focus": graph.focus, "nodes": nodes, "edges": [vars(edge) for edge in graph.edges]}


def to_mermaid(graph: Graph) -> str:
    """A Mermaid flowchart, as GitHub and Prefect draw it."""
    graph = graph.without_shortcuts()
    order = graph.order()
    name = {fp: f"n{number}" for number, fp in enumerate(order)}
    lines = ["flowchart LR"]
    for fp in order:
        node = graph.nodes[fp]
        text = "<br/>".join(
            part
            for part in (f"<b>{_mermaid(node.name)}</b>", f"{node.kind} {node.short}", numbers_of(node))
            if part
        )
        lines.append(f'  {name[fp]}["{text}"]' + (":::focus" if fp == graph.focus else ""))
    for edge in graph.edges:
        arrow = "==>" if edge.label.startswith("teacher") else "-->"
        lines.append(f'  {name[edge.parent]} {arrow}|"{_mermaid(edge.label)}"| {name[edge.child]}')
    lines.append("  classDef focus stroke-width:3px")
    return "\n".join(lines) + "\n"


def _mermaid(text: str) -> str:
    return text.replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")


# picture


def layers_of(graph: Graph) -> dict[str, int]:
    """Column of every node: one to the right of its rightmost parent."""
    layer: dict[str, int] = {}
    for fp in graph.order():
        layer[fp] = max((layer[edge.parent] + 1 for edge in graph.parents(fp)), default=0)
    for fp in reversed(graph.order()):  # what only one later thing needs stands right beside it
        nexts = [layer[edge.child] for edge in graph.children(fp)]
        if nexts and not graph.parents(fp):
            layer[fp] = min(nexts) - 1
    return layer


# the (column, place)s an edge runs through; a place is a node or a gap kept free for the edge
Route = list[tuple[int, str]]


def _lay_out(graph: Graph) -> tuple[list[list[str]], list[tuple[Any, Route]]]:
    """Columns of places, ordered so that edges cross little, and each edge's way through them."""
    layer = layers_of(graph)
    columns: list[list[str]] = [[] for _ in range(max(layer.values()) + 1)]
    for fp in graph.order():
        columns[layer[fp]].append(fp)
    routes: list[tuple[Any, Route]] = []
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
    """`column` sorted by the mean position of each place's neighbours in the column beside it."""
    position = {place: index / max(1, len(other) - 1) for index, place in enumerate(other)}
    own = {place: index / max(1, len(column) - 1) for index, place in enumerate(column)}

    def middle(place: str) -> float:
        found = [position[b] for at, b in neighbours.get(place, []) if at == beside]
        return sum(found) / len(found) if found else own[place]

    return sorted(column, key=middle)


def to_svg(graph: Graph) -> str:
    """A picture that stands alone; follows the reader's light or dark setting."""
    graph = graph.without_shortcuts()
    columns, routes = _lay_out(graph)
    slot = {True: BOX_H + GAP_Y, False: 34}  # a gap needs less room than a box
    heights = [sum(slot[place in graph.nodes] for place in column) for column in columns]
    tall = max(heights)
    at: dict[str, tuple[float, float]] = {}
    for index, column in enumerate(columns):
        y = MARGIN + (tall - heights[index]) / 2
        for place in column:
            room = slot[place in graph.nodes]
            at[place] = (MARGIN + index * (BOX_W + GAP_X), y + room / 2)
            y += room
    width = 2 * MARGIN + len(columns) * BOX_W + (len(columns) - 1) * GAP_X
    height = 2 * MARGIN + tall
    name = html.escape(graph.nodes[graph.focus].name)
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="lineage" {size} role="img" '
        f'aria-label="lineage of {name}">',
        f"<style>{_style()}</style>",
        MARKER,
    ]
    parts += [_edge(edge.label, [at[place] for _, place in route]) for edge, route in routes]
    parts += [_box(graph.nodes[fp], at[fp], fp == graph.focus) for fp in graph.nodes]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _edge(label: str, points: list[tuple[float, float]]) -> str:
    x, y = points[0][0] + BOX_W, points[0][1]
    path = f"M{x:.0f} {y:.0f}"
    for index, (left, middle) in enumerate(points[1:], 1):
        bend = GAP_X / 2
        path += f" C{x + bend:.0f} {y:.0f} {left - bend:.0f} {middle:.0f} {left:.0f} {middle:.0f}"
        if index < len(points) - 1:
            path += f" L{left + BOX_W:.0f} {middle:.0f}"
            left += BOX_W
        x, y = left, middle
    strong = " strong" if label.startswith("teacher") else ""
    words = label.replace(" @ ", " @\n").split("\n")
    left, middle = points[-1][0] - GAP_X / 2, (points[-2][1] + points[-1][1]) / 2
    top = middle + 4 - 13 * (len(words) - 1) / 2
    lines = "".join(
        f'<text class="label{strong}" x="{left:.0f}" y="{top + 13 * row:.0f}">{html.escape(word)}</text>'
        for row, word in enumerate(words)
    )
    return f'<path class="edge{strong}" d="{path}" marker-end="url(#tip)"/>{lines}'


def _box(node: Node, place: tuple[float, float], is_focus: bool) -> str:
    x, y = place[0], place[1] - BOX_H / 2
    title = f"{node.kind} {node.name}\n{node.fingerprint}\n{numbers_of(node)}"
    kind = node.kind if node.kind in COLOURS else "run"
    texts = [
        ("name", 20, _cut(node.name, 24)),
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
.lineage .label{paint-order:stroke;stroke:#fff;stroke-width:4px}
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


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport"
content="width=device-width,initial-scale=1">
<title>{title}</title><style>
body{{font-family:system-ui,sans-serif;margin:1rem;background:#fff;color:#1c2126}}
.wide{{overflow-x:auto}} table{{border-collapse:collapse;margin-top:1rem;font-size:.9rem}}
th,td{{text-align:left;padding:.3rem .7rem .3rem 0;border-bottom:1px solid #ccd2d7;vertical-align:top}}
code{{font-size:.85em}}
@media (prefers-color-scheme:dark){{body{{background:#15191c;color:#e8ecef}} th,td{{border-color:#39424a}}}}
</style></head><body><h1>{title}</h1><div class="wide">{svg}</div>
<div class="wide"><table>
<tr><th>name</th><th>kind</th><th>fingerprint</th><th>numbers</th><th>comes from</th></tr>
{rows}</table></div>
</body></html>
"""


def to_html(graph: Graph) -> str:
    """One file with the picture and a table of everything in it; needs nothing else to be read."""
    rows = []
    for fp in graph.order():
        node = graph.nodes[fp]
        parents = "<br>".join(
            html.escape(f"{edge.label}: {graph.nodes[edge.parent].name}") for edge in graph.parents(fp)
        )
        cells = [
            html.escape(node.name),
            html.escape(node.kind),
            f"<code>{html.escape(fp)}</code>",
            html.escape(numbers_of(node)),
            parents,
        ]
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    title = html.escape(f"Lineage of {graph.nodes[graph.focus].name}")
    return PAGE.format(title=title, svg=to_svg(graph), rows="\n".join(rows))


def to_text(graph: Graph, width: int = 110) -> str:
    """The tree as plain text, for a file or a pipe."""
    import io  # here: only this function writes into memory

    from rich.console import Console  # here: rich's console costs 50 ms, and pictures do without

    target = io.StringIO()
    Console(file=target, width=width, no_color=True, highlight=False, legacy_windows=False).print(
        to_tree(graph)
    )
    return target.getvalue()


def dumps(graph: Graph) -> str:
    return json.dumps(to_json(graph), indent=1, sort_keys=True)
