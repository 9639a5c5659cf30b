"""Figures of the source's structure, beside their goals: python benchmarks/structure.py [--static] [--trial]

--static: without the paths of a run (benchmarks/paths.py); --trial: no result is kept. FIGURES has each goal
and today's limit of each figure, which tests/test_structure.py checks. If you lower a figure, lower its limit
too.

An import is one file's import of another, inside a function or not. Imports under `if TYPE_CHECKING` never
run: they count as imports, and in circles as a figure of their own.
"""

import ast
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

TOP = Path(__file__).resolve().parent.parent
FOLDERS = ("engine", "flows", "infra", "tasks", "src")
PACKAGE, SHORT, LONGEST = "atelier.", 60, 400
KINDS = (
    "model|model/router|objective|optim|conversion|data/datasets|data/filter|data/tagger|data/curation/tasks"
)
REGISTRIES = re.compile(  # folders whose files are found by their names, not by imports
    f"engine/(extensions/[a-z_]+/)?({KINDS}|config/[a-z/]+)|flows|flows/cli/commands|tasks|infra/tracking/sinks"
)
Imports = dict[str, set[str]]  # file -> files that it imports


class Figure(NamedTuple):
    """The goal of a figure, and the most that a test allows today, which is only ever lowered; None: any."""

    goal: int
    most: int | None = None


FIGURES = {
    "lines": Figure(73_900),
    "files over 400 lines": Figure(0, 0),
    "class names of several files": Figure(0, 0),
    "circles of folders": Figure(0, 0),
    "circles of files, when they are imported": Figure(0, 0),
    "circles of files, with imports inside functions": Figure(0, 0),
    "circles of files, with imports for types": Figure(0, 0),
    "files under 60 lines": Figure(60, 57),
    "files that one other imports": Figure(70, 95),
    "files under 60 lines that one other imports": Figure(0, 2),
    "run.json to the optimiser step: files": Figure(45),
    "run.json to the optimiser step: returns": Figure(400),
    "atelier pretrain to the first gang: files": Figure(60),
    "a metric from a rank to MLflow: files": Figure(12),
    "a form on the page to its task: files": Figure(60),
    "a site's message to the other's outer step: files": Figure(14),
    "atelier adopt to the model artifact: files": Figure(16),
}


def sources(top: Path = TOP) -> dict[str, str]:
    """The text of each source file that has one, by its path."""
    paths = sorted(path for folder in FOLDERS for path in (top / folder).rglob("*.py"))
    named = {str(path.relative_to(top)): path.read_text() for path in paths}
    return {path: text for path, text in named.items() if text and "/docker/" not in path}


def figures(texts: dict[str, str]) -> dict[str, int | list[str]]:
    """The static figures by name: a number, or what is counted."""
    trees = {path: ast.parse(text) for path, text in texts.items()}
    lines = {path: len(text.splitlines()) for path, text in texts.items()}
    everything, at_run_time, at_import = (imports(trees, kind) for kind in ("", "types", "functions"))
    folders: Imports = defaultdict(set)
    for path, targets in everything.items():
        folders[os.path.dirname(path)] |= {os.path.dirname(target) for target in targets}
    short = [path for path, count in lines.items() if count < SHORT and not is_registered(path)]
    alone = [path for path in once_imported(everything, texts) if not is_registered(path)]
    return {
        "files": len(lines),
        "lines": sum(lines.values()),
        "files over 400 lines": [path for path, count in lines.items() if count > LONGEST],
        "class names of several files": repeated_classes(trees),
        "circles of folders": circles(folders),
        "circles of files, when they are imported": circles(at_import),
        "circles of files, with imports inside functions": circles(at_run_time),
        "circles of files, with imports for types": circles(everything),
        "files under 60 lines": short,
        "files that one other imports": alone,
        "files under 60 lines that one other imports": [path for path in short if path in alone],
    }


def is_registered(path: str) -> bool:
    """Whether a file lies in a folder whose files are found by their names."""
    return REGISTRIES.fullmatch(os.path.dirname(path)) is not None


def imports(trees: dict[str, ast.Module], without: str) -> Imports:
    """Which files each imports; without those for `types`, or those inside `functions` either."""
    files = {f"{package}{module_of(path)}": path for path in trees for package in ("", PACKAGE)}
    found: Imports = {}
    for path, tree in trees.items():
        each = [files.get(name, files.get(base)) for name, base in imported(tree, path, without)]
        found[path] = {target for target in each if target is not None} - {path}
    return found


def module_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imported(tree: ast.AST, path: str, without: str) -> Iterator[tuple[str, str]]:
    """Each name that is imported with its module, and the module; '' where that is all."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr):  # has no imports
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = path.split("/")[: -node.level] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            yield from ((f"{base}.{alias.name}", base) for alias in node.names)
        elif without and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from imported(ast.Module(node.orelse, []), path, without)
        elif without != "functions" or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from imported(node, path, without)


def circles(reach: Imports) -> list[str]:
    """Groups of which each member leads to all, each as `a <-> b`."""
    closed = {start: set(ends) for start, ends in reach.items()}
    for middle in closed:  # Warshall's closure
        for found in closed.values():
            found |= closed[middle] if middle in found else set()
    groups = {frozenset(end for end in closed[start] if start in closed.get(end, ())) for start in closed}
    return sorted(" <-> ".join(sorted(group)) for group in groups if len(group) > 1)


def once_imported(reach: Imports, texts: dict[str, str]) -> list[str]:
    """Files that exactly one other imports; a program has a user besides, `python -m`."""
    users: Imports = defaultdict(set)
    for path, targets in reach.items():
        for target in targets:
            users[target].add(path)
    return sorted(
        path for path, found in users.items() if len(found) == 1 and "\nif __name__ ==" not in texts[path]
    )


def repeated_classes(trees: dict[str, ast.Module]) -> list[str]:
    places: Imports = defaultdict(set)
    for path, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                places[node.name].add(path)
    return sorted(f"{name}: {', '.join(sorted(found))}" for name, found in places.items() if len(found) > 1)


def size(value: int | list[str]) -> int:
    return value if isinstance(value, int) else len(value)


def table(found: dict[str, int | list[str]]) -> Iterable[str]:
    yield f"{'figure':52}{'now':>8}{'goal':>8}{'most':>8}"
    for name, value in found.items():
        goal, most = FIGURES.get(name, ("", None))
        yield f"{name:52}{size(value):>8}{goal:>8}{'' if most is None else most:>8}"


def main() -> None:
    from machine import keep
    from paths import measured

    flags = set(sys.argv[1:])
    found = figures(sources()) | ({} if "--static" in flags else measured(TOP))
    keep("structure", found, is_trial="--trial" in flags)
    print("\n".join(["", *table(found)]))


if __name__ == "__main__":
    main()
