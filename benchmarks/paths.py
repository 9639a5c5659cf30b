"""Count the files on some paths of a run, for structure.py.

The programs run for real, under a profiler that Python's site hook sets in their processes. A path consists
of steps: in one process the calls from one function to another, first in the thread where it begins, then in
the one where it ends, without imports and the calls that they cause. Its files are those whose functions call
our own; `returns` counts the changes to an earlier one of them. If a function of STEPS is gone, its path
never ends: name the function that does the same now.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

LIBRARY, ORDER, PATIENCE_S = "site-packages/", "order.json", 300
FOLDERS = ("engine", "flows", "infra", "tasks", "src")


class Step(NamedTuple):
    """`program` is among the arguments of its process. From a call of `begin` ('' = at once) to one of `end`
    ('' = the return of `begin`), below it and later than one of `after`; each is `folder/:function`, or
    `module/:function` of C, and perhaps the names of arguments that it then has.
    """

    program: str
    begin: str
    end: str
    after: str = ""


RANK, AGENT, WORKER = "atelier.engine.io.fork_server", "serve", "atelier.infra.stack.flow_process"
COMMAND, GANG = "flows/:run", "infra/:start_gang"
WRITTEN = "posix/:replace"
METRIC = (
    Step(RANK, "engine/loop/:MetricLog.add", WRITTEN),
    Step("pretrain", "infra/tracking/:Following._poll", f"{LIBRARY}mlflow/:MlflowClient.log_batch metrics"),
)
STEPS = {
    "run.json to the optimiser step": (
        Step(RANK, "engine/train.py:main", "engine/optim/:step", "engine/loop/:train_step"),
    ),
    "atelier pretrain to the first gang": (Step("pretrain", COMMAND, GANG),),
    "a metric from a rank to MLflow": METRIC,
    "a form on the page to its task": (
        Step(WORKER, "", f"{LIBRARY}prefect/client/:create_flow_run_from_deployment"),
        Step(WORKER, "", GANG),
    ),
    "a site's message to the other's outer step": (
        Step(RANK, "engine/:OuterSteps._send", ""),
        Step(AGENT, "infra/:SiteExchange._send", ""),
        Step(AGENT, "infra/:SiteExchange._put", ""),
        Step(RANK, "engine/:OuterSteps._take", ""),
    ),
    "atelier adopt to the model artifact": (  # its rank: a flow of few tasks executes it
        Step("atelier.engine.adopt", "engine/adopt.py:main", ""),
    ),
}
TINY, UNTRACKED = "experiment=tiny", "tracker=none"
LONGER = ("train.steps=400", "train.checkpoint_every=200")  # lines in files seconds apart: a poll finds one
SITES = ("sites=[a,b]", "sites.loopback=true", "train.link.every=6")


class Tracer:
    """A profiler of one step."""

    def __init__(self, top: str, out: str, begin: str, end: str, after: str) -> None:
        self.top, self.out, self.begin, self.final, self.after = top, Path(out), begin, end, after
        self.folders = tuple(f"{top}{folder}/" for folder in FOLDERS)
        self.names = {name: name.split(" ")[0].split(":") for name in (begin, end, after) if name}
        self.known: dict[CodeType, tuple[str, list[str]]] = {}
        self.calls: list[tuple[int, str, str]] = []  # thread, caller's file if it is ours, file
        self.loading: dict[int, int] = defaultdict(int)  # modules that a thread is importing
        self.thread, self.frame = threading.get_ident(), None
        self.is_begun, self.is_done = not begin, False

    def spot(self, code: CodeType) -> tuple[str, list[str]]:
        """Its file if that is ours, and which of the names it has."""
        if code not in self.known:
            path, own = os.path.realpath(code.co_filename), (code.co_name, code.co_qualname)
            is_ours = path.startswith(self.folders) and code.co_filename[0] != "<"  # <frozen os>
            file = path.removeprefix(self.top) if is_ours else ""
            place = file or LIBRARY + path.rpartition(LIBRARY)[2]
            found = [n for n, (start, end) in self.names.items() if place.startswith(start) and end in own]
            self.known[code] = file, found
        return self.known[code]

    def hear(self, frame: FrameType, event: str, argument: Any) -> None:
        code, thread, back = frame.f_code, threading.get_ident(), frame.f_back
        if event == "c_call":
            mark = f"{getattr(argument, '__module__', '')}/:{argument.__name__}" if self.is_begun else ""
            if mark and mark == self.final and self.spot(code)[0]:
                self.finish()
        elif event == "return" and frame is self.frame:
            if self.final:  # in vain
                self.is_begun, self.frame, self.calls = False, None, []
            else:
                self.finish()
        elif code.co_name == "<module>" and event in ("call", "return"):
            if back and back.f_code.co_filename.startswith("<frozen importlib"):
                self.loading[thread] = max(0, self.loading[thread] + (1 if event == "call" else -1))
        elif event == "call":
            self.called(frame, thread)

    def called(self, frame: FrameType, thread: int) -> None:
        code, back = frame.f_code, frame.f_back
        file, marks = self.spot(code)
        if self.begin in marks and not self.is_begun:
            self.is_begun, self.frame, self.thread = True, frame, thread
        is_function = code.co_name[0] != "<" and code.co_flags & 1  # and no class's body
        if self.is_begun and file and is_function and not self.loading[thread]:
            self.calls.append((thread, self.spot(back.f_code)[0] if back else "", file))
        self.after = "" if self.after in marks else self.after
        is_end = self.is_begun and not self.after and self.final in marks
        if is_end and all(map(frame.f_locals.get, self.final.split(" ")[1:])):
            self.finish()

    def finish(self) -> None:
        threads = dict.fromkeys((self.thread, threading.get_ident()))
        calls = [call for thread in threads for call in self.calls if call[0] == thread]
        part = self.out.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps([caller for _, caller, _ in calls if caller]))
        part.rename(self.out)
        self.is_done = True


def hook() -> None:
    """A process of the runs begins: trace its steps, and have its children come here too."""
    folder, start = os.path.dirname(__file__), subprocess.Popen.__init__
    order = json.loads(Path(folder, ORDER).read_text())  # a file: ranks are given few variables

    def start_hooked(self: Any, *words: Any, env: Any = None, **options: Any) -> None:
        if env and folder not in (path := env.get("PYTHONPATH", folder)):
            env = {**env, "PYTHONPATH": f"{folder}{os.pathsep}{path}"}
        start(self, *words, env=env, **options)

    subprocess.Popen.__init__ = start_hooked
    waiting = [
        Tracer(order["top"], out, begin, end, after)
        for out, (program, begin, end, after) in order["steps"].items()
        if program in sys.orig_argv
    ]

    def hear(frame: FrameType, event: str, argument: Any) -> None:
        if not waiting:
            sys.setprofile(None)
        for tracer in waiting:
            tracer.hear(frame, event, argument)
            if tracer.is_done:
                waiting.remove(tracer)
                return

    if waiting:
        threading.setprofile(hear)
        sys.setprofile(hear)


class Bench(NamedTuple):
    """The checkout, and the folder of what its processes leave."""

    top: Path
    folder: str

    def run(self, store: str, *command: str, trace: Sequence[str] = (), **more: str) -> None:
        """Run a program of the checkout's .venv to its end, and trace these paths (none = as before)."""
        own, path = ("PREFECT_", "MLFLOW_", "ATELIER_"), f"{self.folder}{os.pathsep}{self.top}/src"
        env = {key: value for key, value in os.environ.items() if not key.startswith(own)} | more
        env |= {"ATELIER_ROOT": f"{self.folder}/{store}", "PYTHONPATH": path}
        steps = {out: step for name in trace for out, step in self.outs(name).items()}
        if steps:
            Path(self.folder, ORDER).write_text(json.dumps({"top": f"{self.top}/", "steps": steps}))
        words = [f"{self.top}/.venv/bin/{command[0]}", *command[1:]]
        subprocess.run(words, env=env, cwd=self.top, stdout=sys.stderr, timeout=2 * PATIENCE_S, check=True)

    def outs(self, name: str) -> dict[str, Step]:
        """The steps of a path, by the file of what was traced."""
        number = list(STEPS).index(name)
        return {f"{self.folder}/{number}-{place}": step for place, step in enumerate(STEPS[name])}

    def serve(self, name: str) -> None:
        """The two flow runs that a form starts."""
        with socket.create_server(("", 0)) as one, socket.create_server(("", 0)) as other:
            ports = [str(each.getsockname()[1]) for each in (one, other)]
        try:
            at = ("--prefect-port", ports[0], "--mlflow-port", ports[1])
            self.run("up", "atelier", "up", *at, trace=[name])
            user = json.loads(Path(f"{self.folder}/up/stack/credentials.json").read_text())
            client = {"PREFECT_API_URL": f"http://127.0.0.1:{ports[0]}/api"}
            client["PREFECT_API_AUTH_STRING"] = f"{user['user']}:{user['password']}"
            form = ("-p", TINY, "-p", f'advanced={{"overrides": ["{UNTRACKED}"]}}')
            self.run("up", "prefect", "deployment", "run", "distill/atelier", *form, **client)
            self.read(name)
        finally:
            self.run("up", "atelier", "down")

    def read(self, name: str) -> list[str]:
        """The callers' files of a path, as soon as all of it is there."""
        paths, end = [Path(out) for out in self.outs(name)], time.monotonic() + PATIENCE_S
        while missing := [path for path in paths if not path.exists()]:
            if time.monotonic() > end:
                raise SystemExit(f"{name}: {[self.outs(name)[str(path)] for path in missing]} did not end")
            time.sleep(0.2)
        return [file for path in paths for file in json.loads(path.read_text())]


def measured(top: Path) -> dict[str, int | list[str]]:
    """The files of each path, and the returns of the first."""
    step, gang, metric, form, message, adopted = STEPS
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        (Path(folder) / "sitecustomize.py").symlink_to(Path(__file__).resolve())
        bench = Bench(top, folder)
        bench.run("a", "atelier", "pretrain", TINY, UNTRACKED, trace=[step, gang])
        bench.run("b", "atelier", "pretrain", TINY, *LONGER, trace=[metric])
        bench.run("c", "atelier", "pretrain", TINY, UNTRACKED, *SITES, trace=[message])
        bench.run("a", "atelier", "export", "model", f"{folder}/model")
        bench.run("a", "atelier", "adopt", f"source={folder}/model", UNTRACKED, trace=[adopted])
        bench.serve(form)
        found: dict[str, int | list[str]] = {}
        for name in STEPS:
            turns = [file for file, _ in groupby(bench.read(name))]
            found[f"{name}: files"] = [*dict.fromkeys(turns)]
            if name == step:
                found[f"{name}: returns"] = len(turns) - len({*turns})
        return found


if __name__ == "sitecustomize":
    hook()
