"""Render a lineage graph as a tree for the terminal, JSON, Mermaid and one HTML page."""

import html
import json

from rich.text import Text
from rich.tree import Tree

from atelier.engine.config.base import Json
from atelier.engine.config.error import printable
from atelier.infra.report.lineage_graph import Graph, LineageNode
from atelier.infra.report.lineage_svg import numbers_of, to_svg
from atelier.infra.report.table import html_rows

# text


def to_tree(graph: Graph) -> Tree:
    """A rich tree: ancestors, the focus, descendants. A node that was shown before is not expanded again."""
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


def _line(node: LineageNode, label: str, *, bold: bool = False, again: bool = False) -> Text:
    text = Text()
    if label:
        text.append(printable(label, 0), style="bold yellow" if label.startswith("teacher") else "cyan")
    text.append(printable(node.name, 0), style="bold" if bold else "")
    text.append(printable(f"  {node.kind} {node.short}", 0), style="dim")
    if again:
        text.append("  (see above)", style="dim")
    elif numbers_of(node):
        text.append(f"  {numbers_of(node)}")
    return text


def to_json(graph: Graph) -> dict[str, Json]:
    """The graph as JSON data: nodes in topological order, parents first."""
    nodes = [vars(graph.nodes[fp]) for fp in graph.order()]
    return {"focus": graph.focus, "nodes": nodes, "edges": [vars(edge) for edge in graph.edges]}


def to_mermaid(graph: Graph) -> str:
    """A Mermaid flowchart, as GitHub and Prefect render it."""
    graph = graph.without_shortcuts()
    order = graph.order()
    name = {fp: f"n{number}" for number, fp in enumerate(order)}
    lines = ["flowchart LR"]
    for fp in order:
        node = graph.nodes[fp]
        text = "<br/>".join(
            part
            for part in (
                f"<b>{_mermaid(node.name)}</b>",
                f"{node.kind} {node.short}",
                _mermaid(numbers_of(node)),
            )
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


COLUMNS = ("name", "numbers", "comes from", "fingerprint")
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport"
content="width=device-width,initial-scale=1">
<title>{title}</title><style>
body{{font-family:system-ui,sans-serif;margin:0 auto;max-width:90rem;padding:1rem clamp(.8rem,3vw,2rem);
background:#fff;color:#1c2126}} h1{{font-size:1.7rem;line-height:1.2;overflow-wrap:anywhere}}
.wide{{overflow-x:auto}} .narrow{{display:none}}
table{{border-collapse:collapse;margin-top:1rem;font-size:.9rem}}
th,td{{text-align:left;padding:.3rem .7rem .3rem 0;border-bottom:1px solid #ccd2d7;vertical-align:top}}
code{{font-size:.85em}} small{{color:#5a656e}}
@media (max-width:48rem){{table{{font-size:.8rem}} th:nth-child(4),td:nth-child(4),.broad{{display:none}}
.narrow{{display:block}} .narrow svg{{max-width:100%;height:auto}}}}
@media (prefers-color-scheme:dark){{body{{background:#15191c;color:#e8ecef}} th,td{{border-color:#39424a}}
small{{color:#a3aeb7}}}}
</style></head><body><h1>{title}</h1><div class="wide broad">{svg}</div>
<div class="wide narrow">{near}</div>
<div class="wide">{table}</div>
</body></html>
"""


def to_html(graph: Graph) -> str:
    """One self-contained file with the picture and a table of all nodes. A narrow window shows only the
    focus, its ancestors and its children.
    """
    rows = []
    for fp in graph.order():
        node = graph.nodes[fp]
        parents = "<br>".join(
            html.escape(f"{edge.label}: {graph.nodes[edge.parent].name}") for edge in graph.parents(fp)
        )
        cells = [
            f"{html.escape(node.name)}<br><small>{html.escape(f'{node.kind} {node.short}')}</small>",
            html.escape(numbers_of(node)),
            parents,
            f"<code>{html.escape(fp)}</code>",
        ]
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    title = html.escape(f"Lineage of {graph.nodes[graph.focus].name}")
    return PAGE.format(
        title=title,
        svg=to_svg(graph),
        near=to_svg(graph.near(), mark="near"),
        table=html_rows(COLUMNS, rows, "\n"),
    )


def to_text(graph: Graph, width: int = 110) -> str:
    """The tree as plain text, for a file or a pipe."""
    import io  # imported here: only this function writes into memory

    from rich.console import Console  # imported here: rich's console costs 50 ms that pictures do not need

    target = io.StringIO()
    Console(file=target, width=width, no_color=True, highlight=False, legacy_windows=False).print(
        to_tree(graph)
    )
    return target.getvalue()


def dumps(graph: Graph) -> str:
    return json.dumps(to_json(graph), indent=1, sort_keys=True)
