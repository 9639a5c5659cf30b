"""Draw the folders of the source with the imports between them: python benchmarks/architecture.py

Writes docs/pictures/architecture.svg. A folder stands above all folders that it imports. An arrow that other
arrows imply is left out. Extensions are found by their names, so no arrow leads to them.
"""

import ast
from collections import defaultdict

from structure import TOP, imports, sources

PICTURE = TOP / "docs/pictures/architecture.svg"
COLOURS = {"src": "#666666", "flows": "#1f6fb4", "tasks": "#8a5fb0", "infra": "#2c8a57", "engine": "#c0622a"}
ROLES = {
    "src": "package, Python API", "flows": "DAGs", "flows/run": "plan, run with Prefect",
    "flows/cli": "command line", "flows/sweep": "sweeps", "flows/deployments": "workers and forms",
    "flows/sites": "other sites", "tasks": "what a node runs", "infra": "nodes and references",
    "infra/run": "context of a task", "infra/launch": "processes, Slurm, Kubernetes",
    "infra/store": "artifacts, leases", "infra/tracking": "MLflow and others",
    "infra/report": "reports, lineage", "infra/sites": "agents between sites", "infra/stack": "servers",
    "infra/code": "code maps", "infra/calibration": "measured rates", "engine": "entry points of ranks",
    "engine/config": "specs, records, errors", "engine/loop": "training loop", "engine/model": "networks",
    "engine/objective": "losses", "engine/optim": "optimisers", "engine/parallel": "process groups, layouts",
    "engine/plan": "memory and time of a run", "engine/data": "text, tokens, rows",
    "engine/conversion": "grow, merge, moefy", "engine/inference": "generate, serve",
    "engine/checkpoint": "checkpoints", "engine/tier": "weights on CPU and disk",
    "engine/io": "storage, fork server",
}  # fmt: skip
WIDE, HIGH, GAP, BAND = 150, 42, 14, 92
MOST = 7  # boxes in a row


def folder_of(path: str) -> str:
    """The folder in which a file is drawn: two levels, three for extensions."""
    parts = path.split("/")[:-1]
    deep = 3 if parts[:2] == ["engine", "extensions"] else 2
    return "src" if parts[0] == "src" else "/".join(parts[:deep])


def graph() -> dict[str, set[str]]:
    """Folder -> folders that it imports."""
    found = defaultdict[str, set[str]](set)
    trees = {path: ast.parse(text) for path, text in sources().items()}
    for path, targets in imports(trees, "").items():
        found[folder_of(path)] |= {folder_of(target) for target in targets} - {folder_of(path)}
    return dict(found)


def reduced(reach: dict[str, set[str]]) -> dict[str, set[str]]:
    """Without the imports that others imply. Folders in a circle keep theirs."""

    def below(start: str, seen: set[str]) -> set[str]:
        for name in reach.get(start, set()) - seen:
            seen.add(name)
            below(name, seen)
        return seen

    closed = {name: below(name, set()) for name in reach}
    return {
        name: {end for end in ends if not any(end in closed.get(other, ()) for other in ends - {end})}
        for name, ends in reach.items()
    }


def rows_of(reach: dict[str, set[str]]) -> list[list[str]]:
    """Folders by the longest chain of imports below them, the longest first; a long row is divided."""
    depth: dict[str, int] = {}

    def measure(name: str) -> int:
        if name not in depth:
            depth[name] = 0
            depth[name] = 1 + max((measure(end) for end in reach.get(name, ())), default=-1)
        return depth[name]

    for name in sorted(reach):
        measure(name)
    found = []
    for level in range(max(depth.values()), -1, -1):
        row = sorted(
            (name for name in depth if depth[name] == level), key=lambda name: (name.split("/")[0], name)
        )
        found += [row[start : start + MOST] for start in range(0, len(row), MOST)]
    return found


def drawing() -> str:
    """The picture, as SVG."""
    reach = graph()
    rows, wide = rows_of(reach), MOST * (WIDE + GAP) + GAP
    high, places = len(rows) * BAND, dict[str, tuple[int, int]]()
    for number, row in enumerate(rows):
        left = (wide - len(row) * (WIDE + GAP) + GAP) // 2
        places |= {name: (left + at * (WIDE + GAP), 10 + number * BAND) for at, name in enumerate(row)}
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" font-family="sans-serif">',
        f'<rect width="{wide}" height="{high}" fill="white"/>',
    ]
    for name, ends in sorted(reduced(reach).items()):
        lines += [_arrow(places[name], places[end], _colour(name)) for end in sorted(ends)]
    for name, (x, y) in places.items():
        about = ROLES.get(name, "extension" if "extensions" in name else "")
        title, colour = name.replace("engine/extensions/", "extensions/"), _colour(name)
        box = f'x="{x}" y="{y}" width="{WIDE}" height="{HIGH}" rx="5"'
        lines += [
            f'<rect {box} fill="white" stroke="{colour}" stroke-width="1.5"/>',
            f'<text x="{x + 8}" y="{y + 17}" font-size="12" fill="{colour}">{title}</text>',
            f'<text x="{x + 8}" y="{y + 33}" font-size="10" fill="#333">{about}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])


def _colour(name: str) -> str:
    return COLOURS[name.split("/")[0]]


def _arrow(start: tuple[int, int], end: tuple[int, int], colour: str) -> str:
    x1, y1, x2, y2 = start[0] + WIDE // 2, start[1] + HIGH, end[0] + WIDE // 2, end[1]
    curve = f"M{x1},{y1} C{x1},{y1 + 40} {x2},{y2 - 40} {x2},{y2}"
    return f'<path d="{curve}" fill="none" stroke="{colour}" stroke-width="1.2" opacity="0.55"/>'


if __name__ == "__main__":
    PICTURE.write_text(drawing())
    print(PICTURE)
