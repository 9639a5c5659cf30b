"""How the source is structured: figures of its files, and how many of them four paths lead through:
python benchmarks/structure.py [--static] [--trial] [checkout ...]

Of checkouts with a .venv, by default this one; --static: no paths, --trial: no result is kept. The paths are
run for real, under a profiler that Python's site hook sets in their processes:
a  `atelier distill experiment=tiny`, from the command line's main to the start of the first gang
b  a rank of `pretrain experiment=tiny`, from its main to the first optimiser step
c  a metric line: in that rank from the curve that gets it to its file, in the command the poll that sends it
d  (a) from a form: the flow run that a worker starts, until it asks for one on a pool, and that, to its gang
(a) and (d) go without MLflow. A path is the calls of functions of the source folders, first in the thread
where it begins, then in the one where it ends, without imports and what they call. `files`: whose functions
call our own; `entered`: whose are called, by libraries too; `returns`: changes to an earlier calling file.
"""

import ast
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from statistics import mean, median
from types import CodeType, FrameType
from typing import Any, NamedTuple

HERE = Path(__file__).resolve()
FOLDERS = ("engine", "flows", "infra", "tasks", "src", "hydra_plugins")
NAMES = {  # in the old tree (engine.x), in the new one (atelier.engine.x): a module, or `folder/:function`
    "command": ("flows/:main", "flows/:run"),
    "gang": ("infra/:start_gang", "infra/:start_gang"),
    "rank module": ("engine.train", "atelier.engine.train"),
    "rank": ("engine/:main", "engine/:main"),
    "training step": ("engine/loop/:take_step", "engine/loop/:train_step"),
    "optimiser step": ("engine/optim/:step", "engine/optim/:step"),  # the first of a training step
    "curve": ("engine/loop/:Curve.add", "engine/loop/:MetricLog.add"),
    "poll": ("infra/tracking/:Following._poll", "infra/tracking/:Following._poll"),
    "flow module": ("infra.stack.flow_process", "atelier.infra.stack.flow_process"),
}
SAID = (".kind", ".term", ".compares")  # what says which objective it is
Function = ast.FunctionDef | ast.AsyncFunctionDef
Alias = ast.Name | ast.Subscript | ast.BinOp  # a value that may be another name of a type
PACKAGE, LIBRARY, ORDER, PATIENCE_S = "atelier.", "site-packages/", "STRUCTURE_TRACE", 300
WRITTEN, ASKED = "posix/:replace", f"{LIBRARY}prefect/client/:create_flow_run_from_deployment"
SENT = f"{LIBRARY}mlflow/:MlflowClient.log_batch metrics"  # a call that has some
TINY, UNTRACKED = "experiment=tiny", "tracker=none"
LONGER = ("train.steps=400", "train.checkpoint_every=200")  # lines in files seconds apart: a poll finds one


def figures(top: Path) -> dict[str, Any]:
    """Of the files that git tracks, those with at least a line; imports inside functions are imports too."""
    listed = subprocess.check_output(["git", "-C", str(top), "ls-files", *FOLDERS], text=True).split("\n")
    paths = [p for p in listed if p.endswith(".py") and "infra/docker/" not in p and (top / p).exists()]
    texts = {path: text for path in paths if (text := (top / path).read_text())}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    imports = list(statements(trees))
    lines = {path: len(text.splitlines()) for path, text in texts.items()}
    classes, users, folders = defaultdict(list), defaultdict(set), defaultdict(set)
    for path, tree in trees.items():
        for name in dict.fromkeys(node.name for node in tree.body if isinstance(node, ast.ClassDef)):
            classes[name].append(path)
    for path, target in ((path, target) for path, targets in imports for target in targets):
        users[target].add(path)
        folders[os.path.dirname(path)].add(os.path.dirname(target))
    return {
        "files": len(lines),
        "lines": sum(lines.values()),
        "mean lines of a file": round(mean(lines.values()), 1),
        "median lines of a file": median(lines.values()),
        "files under 60 lines": sum(count < 60 for count in lines.values()),
        "files over 400 lines": sorted(path for path, count in lines.items() if count > 400),
        "files that one other imports": sorted(path for path, found in users.items() if len(found) == 1),
        "class names of several files": {n: found for n, found in sorted(classes.items()) if len(found) > 1},
        "cycles of folders": cycles(folders),
        "imports upwards": list(upward(imports, top)),
        "untyped annotations": len(found := list(untyped(trees))),
        "dispatch on kinds of objectives elsewhere": list(dispatch(trees)),
        **{f"untyped annotations in {folder}": n for folder, n in sorted(Counter(found).items())},
    }


def around(path: str) -> list[str]:
    """Its module and the packages that this is in, inner ones first."""
    parts = path.removesuffix(".py").removesuffix("/__init__").split("/")
    return [".".join(parts[:count]) for count in range(len(parts), 0, -1)]


def statements(trees: dict[str, ast.Module]) -> Iterator[tuple[str, set[str]]]:
    """The file of every import, and which of the others it imports."""
    files = {package + around(path)[0]: path for path in trees for package in ("", PACKAGE)}
    for path, node in ((path, node) for path, tree in trees.items() for node in ast.walk(tree)):
        names = [(alias.name, "") for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            above = Path(path).parent.parts[: 1 - node.level or None] if node.level else ()
            base = ".".join([*above, *filter(None, [node.module])])
            names = [(f"{base}.{alias.name}", base) for alias in node.names]
        if targets := {files.get(name, files.get(base, path)) for name, base in names} - {path}:
            yield path, targets


def cycles(reach: dict[str, set[str]]) -> list[list[str]]:
    """Groups that lead from each of their members to all."""
    for middle in list(reach):  # Warshall's closure
        for found in reach.values():
            found |= reach[middle] if middle in found else set()
    groups = {frozenset(end for end in reach[start] if start in reach.get(end, ())) for start in reach}
    return sorted(sorted(group) for group in groups if len(group) > 1)


def upward(imports: list[tuple[str, set[str]]], top: Path) -> Iterator[str]:
    """Imports against the layers of the project's own contracts, or between siblings of `a | b`."""
    for contract in tomllib.loads((top / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]:
        inside = [f"{name}." for name in contract.get("containers", ())] or [""]
        spots = {
            f"{prefix}{name.strip()}".removeprefix(PACKAGE): (number, place)
            for number, layer in enumerate(contract.get("layers", ()))
            for place, name in enumerate(layer.split("|"))
            for prefix in inside
        }
        for path, targets in imports:
            each = ([spots[name] for name in around(file) if name in spots] for file in (path, *targets))
            here, *others = (found[0] if found else None for found in each)
            if here and any(there and here != there and here[0] >= there[0] for there in others):
                yield f"{path} -> {', '.join(sorted(targets))}"


def dispatch(trees: dict[str, ast.Module]) -> Iterator[str]:
    """Where code outside the objectives' folders tests which objective it has: isinstance of a class of
    theirs, or a comparison of a kind with one of their names.
    """
    folders = tuple(f"{base}/objective/" for base in ("engine/config", "engine/spec", "engine"))
    inside = {path: tree for path, tree in trees.items() if path.startswith(folders[:2])}
    classes = {node.name for tree in inside.values() for node in tree.body if isinstance(node, ast.ClassDef)}
    kinds = {Path(path).stem for path in inside} - {"__init__"}
    for path, node in ((path, node) for path, tree in trees.items() for node in ast.walk(tree)):
        if path.startswith(folders) or not isinstance(node, ast.Call | ast.Compare):
            continue
        words = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        asks = isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance" and words & classes
        compares = isinstance(node, ast.Compare) and ast.unparse(node.left).endswith(SAID)
        named = {each.value for each in ast.walk(node) if isinstance(each, ast.Constant)} & kinds
        if asks or (compares and named):
            yield f"{path}:{node.lineno}"


def untyped(trees: dict[str, ast.Module]) -> Iterator[str]:
    """The folder of each annotation of a parameter, result, field or variable that says Any or object, itself
    or by a name that some module gives to such a type."""
    names = {path: {"Any", "object"} for path in trees}
    files = {PACKAGE + around(path)[0]: path for path in trees}
    count = 0
    while count != (count := sum(map(len, names.values()))):  # until no name of one brings another
        for path, node in ((path, node) for path, tree in trees.items() for node in ast.walk(tree)):
            if isinstance(node, ast.ImportFrom) and (source := files.get(node.module or "")):
                names[path] |= {a.asname or a.name for a in node.names if a.name in names[source]}
            elif isinstance(node, ast.Assign | ast.AnnAssign) and node in trees[path].body:
                is_type = isinstance(node.value, Alias) and not names[path].isdisjoint(words(node.value))
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names[path] |= {t.id for t in targets if isinstance(t, ast.Name) and is_type}
    for path, node in ((path, node) for path, tree in trees.items() for node in ast.walk(tree)):
        told = getattr(node, "returns" if isinstance(node, Function) else "annotation", None)
        if told and not names[path].isdisjoint(words(told)):
            yield os.path.dirname(path)


def words(annotation: ast.AST) -> Iterator[str]:
    """The names of types in it, in quotes too; texts of Literal and the notes of Annotated are none."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        with suppress(SyntaxError):  # a key of a table
            yield from words(ast.parse(annotation.value, mode="eval").body)
    elif isinstance(annotation, ast.Name | ast.Attribute):
        yield annotation.id if isinstance(annotation, ast.Name) else annotation.attr
    elif isinstance(annotation, ast.Subscript) and (name := [*words(annotation.value)]) != ["Literal"]:
        yield from name
        inner, has_notes = annotation.slice, name == ["Annotated"]
        yield from words(inner.elts[0] if has_notes and isinstance(inner, ast.Tuple) else inner)
    elif isinstance(annotation, ast.Tuple | ast.List) or (
        isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitOr)
    ):
        yield from (word for child in ast.iter_child_nodes(annotation) for word in words(child))


class Tracer:
    """A profiler: the calls from `begin` ('' = at once) to one of `ends`, below it and later than `after`."""

    def __init__(self, top: str, out: str, begin: str, after: str, *ends: str) -> None:
        self.top, self.out, self.begin, self.after, self.ends = top, out, begin, after, ends
        self.folders = tuple(f"{top}{folder}/" for folder in FOLDERS)
        self.names = {name: name.split(" ")[0].split(":") for name in (begin, after, *ends) if name}
        self.known: dict[CodeType, tuple[str, str]] = {}
        self.calls: list[tuple[int, str, str]] = []  # thread, caller's file if it is ours, file
        self.loading: dict[int, int] = defaultdict(int)  # modules that a thread is importing
        self.thread, self.frame, self.is_begun = threading.get_ident(), None, not begin

    def spot(self, code: CodeType) -> tuple[str, str]:
        """Its file if that is ours, and which of the names it has."""
        if code not in self.known:
            path, own = os.path.realpath(code.co_filename), (code.co_name, code.co_qualname)
            file = path.removeprefix(self.top) if path.startswith(self.folders) else ""
            place = file or LIBRARY + path.rpartition(LIBRARY)[2]
            found = [n for n, (start, end) in self.names.items() if place.startswith(start) and end in own]
            self.known[code] = file, (found or [""])[0]
        return self.known[code]

    def hear(self, frame: FrameType, event: str, argument: Any) -> None:
        code, thread, back = frame.f_code, threading.get_ident(), frame.f_back
        if not self.ends:
            sys.setprofile(None)
        elif event == "c_call" and self.is_begun and self.spot(code)[0]:
            if (mark := f"{getattr(argument, '__module__', '')}/:{argument.__name__}") in self.ends:
                self.end(mark)
        elif event == "return" and frame is self.frame:
            self.is_begun, self.frame, self.calls = False, None, []
        elif code.co_name == "<module>" and event in ("call", "return"):
            if back and back.f_code.co_filename.startswith("<frozen importlib"):
                self.loading[thread] = max(0, self.loading[thread] + (1 if event == "call" else -1))
        elif event == "call":
            file, mark = self.spot(code)
            if mark and mark == self.begin and not self.is_begun:
                self.is_begun, self.frame, self.thread = True, frame, thread
            is_function = code.co_name[0] != "<" and code.co_flags & 1  # and no class's body
            if self.is_begun and file and is_function and not self.loading[thread]:
                self.calls.append((thread, self.spot(back.f_code)[0] if back else "", file))
            self.after = "" if mark == self.after else self.after
            is_end = self.is_begun and not self.after and mark in self.ends
            if is_end and all(map(frame.f_locals.get, mark.split(" ")[1:])):
                self.end(mark)

    def end(self, mark: str) -> None:
        path, self.ends = Path(self.out) / str(self.ends.index(mark)), ()
        threads = dict.fromkeys((self.thread, threading.get_ident()))
        calls = [call for thread in threads for call in self.calls if call[0] == thread]
        told = {"callers": [c[1] for c in calls if c[1]], "entered": [c[2] for c in calls]}
        path.with_suffix(".part").write_text(json.dumps(told))
        path.with_suffix(".part").rename(path)
        if self.begin:  # a path of one process
            os._exit(0)


def hook() -> None:
    """A process of a checkout begins: trace it if it is meant, and have its children come here too."""
    word, *order = json.loads(os.environ[ORDER])
    folder, start = os.path.dirname(__file__), subprocess.Popen.__init__

    def start_hooked(self: Any, *words: Any, env: Any = None, **options: Any) -> None:
        if env and folder not in (path := env.get("PYTHONPATH", folder)):
            env = {**env, "PYTHONPATH": f"{folder}{os.pathsep}{path}"}
        start(self, *words, env=env, **options)

    subprocess.Popen.__init__ = start_hooked
    hear = Tracer(*order).hear if word in sys.orig_argv else None
    threading.setprofile(hear)
    sys.setprofile(hear)


class Bench(NamedTuple):
    """A checkout, and the folder of what its processes leave."""

    top: Path
    folder: str
    names: dict[str, str]

    def run(self, store: str, *command: str, **more: str) -> None:
        """Run a program of the checkout's .venv to its end, with `more` environment."""
        own, path = ("PREFECT_", "MLFLOW_", "ATELIER_"), f"{self.folder}{os.pathsep}{self.top}/src"
        env = {key: value for key, value in os.environ.items() if not key.startswith(own)} | more
        env |= {"ATELIER_ROOT": f"{self.folder}/{store}", "PYTHONPATH": path}
        words = [f"{self.top}/.venv/bin/{command[0]}", *command[1:]]
        subprocess.run(words, env=env, cwd=self.top, stdout=sys.stderr, timeout=PATIENCE_S, check=True)

    def trace(self, begin: str, end: str, *command: str, after: str = "") -> dict[str, Any]:
        out = tempfile.mkdtemp(dir=self.folder)
        names = (self.names.get(name, name) for name in (begin, after, end))
        order = [command[-1], f"{self.top}/", out, *names]
        self.run(command[1], *command, **{ORDER: json.dumps(order)})
        return read(Path(out) / "0", 0)

    def run_file(self) -> str:
        """That of the pretraining, with folders of its own to write into."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        run = json.loads(next(Path(self.folder).glob("pretrain/scratch/*/*-train/run.json")).read_text())
        run |= {"scratch": str(folder), "outputs": {key: f"{folder}/{key}" for key in run["outputs"]}}
        members = [m for training in run["config"]["trainings"] for m in training["members"].values()]
        for segment in (segment for member in members for segment in member["segments"]):
            segment["url"] = f"{folder}/{Path(segment['url']).name}"
        (folder / "run.json").write_text(json.dumps(run | {"sources": {}}))
        return f"{folder}/run.json"

    def served(self) -> list[dict[str, Any]]:
        """The two flow runs that a form starts."""
        out, ends = tempfile.mkdtemp(dir=self.folder), [ASKED, self.names["gang"]]
        order = [self.names["flow module"], f"{self.top}/", out, "", "", *ends]
        with socket.create_server(("", 0)) as one, socket.create_server(("", 0)) as other:
            ports = [str(each.getsockname()[1]) for each in (one, other)]
        try:
            at, more = ("--prefect-port", ports[0], "--mlflow-port", ports[1]), {ORDER: json.dumps(order)}
            self.run("up", "atelier", "up", *at, **more)
            user = json.loads(Path(f"{self.folder}/up/stack/credentials.json").read_text())
            client = {"PREFECT_API_URL": f"http://127.0.0.1:{ports[0]}/api"}
            client["PREFECT_API_AUTH_STRING"] = f"{user['user']}:{user['password']}"
            form = ("-p", TINY, "-p", f'overrides=["{UNTRACKED}"]')
            self.run("up", "prefect", "deployment", "run", "distill/atelier", *form, **client)
            return [read(Path(out) / number, PATIENCE_S) for number in ("0", "1")]
        finally:
            self.run("up", "atelier", "down")

    def paths(self) -> dict[str, Any]:
        rank = ("python", "-m", self.names["rank module"])
        planned = self.trace("command", "gang", "atelier", "distill", TINY, UNTRACKED)
        sent = self.trace("poll", SENT, "atelier", "pretrain", TINY, *LONGER)
        step = self.trace("rank", "optimiser step", *rank, self.run_file(), after="training step")
        line = self.trace("curve", WRITTEN, *rank, self.run_file())
        traces = {"a": [planned], "b": [step], "c": [line, sent], "d": self.served()}
        return {name: summary(each) for name, each in traces.items()}


def read(path: Path, patience_s: float) -> dict[str, Any]:
    """A trace, as soon as it is there."""
    while not path.exists():
        if (patience_s := patience_s - 0.2) < 0:
            raise SystemExit("a path did not come to its end: see NAMES")
        time.sleep(0.2)
    return json.loads(path.read_text())


def summary(traces: list[dict[str, Any]]) -> dict[str, Any]:
    turns = [file for file, _ in groupby(file for each in traces for file in each["callers"])]
    entered = dict.fromkeys(file for each in traces for file in each["entered"])
    return {"files": [*dict.fromkeys(turns)], "entered": [*entered], "returns": len(turns) - len({*turns})}


def measure(top: Path, with_paths: bool) -> dict[str, Any]:
    commit = subprocess.check_output(["git", "-C", str(top), "rev-parse", "--short", "HEAD"], text=True)
    names = {what: pair[(top / "src" / "atelier").exists()] for what, pair in NAMES.items()}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        (Path(folder) / "sitecustomize.py").symlink_to(HERE)
        paths = Bench(top, folder, names).paths() if with_paths else {}
    return {"commit": commit.strip(), "source": figures(top), "paths": paths}


def main() -> None:
    from machine import keep  # here: traced processes do without

    flags = {word for word in sys.argv[1:] if word.startswith("--")}
    tops = [Path(word).resolve() for word in sys.argv[1:] if word not in flags] or [HERE.parent.parent]
    results = [measure(top, "--static" not in flags) for top in tops]
    keep("structure", {"checkouts": results}, is_trial=bool(flags))
    for found in results:
        paths = {f"path {name}: {key}": n for name, path in found["paths"].items() for key, n in path.items()}
        print(f"\ncommit {found['commit']}")
        for name, value in (found["source"] | paths).items():
            print(f"{name:30}{len(value) if isinstance(value, list | dict) else value:>8}")


if __name__ == "__main__":
    main()
elif __name__ == "sitecustomize" and ORDER in os.environ:
    hook()
