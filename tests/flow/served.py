"""A stack for a test, started as a user starts it, with the command line and Prefect's API."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.checkout import TOP, python_path
from tests.ports import free_port


class Served:
    """`atelier up` for the store at `root`, on free ports: of the checkout at `project`, with more
    environment; or of what another interpreter, `python`, has installed, in the folder `project`.
    """

    def __init__(
        self, root: Path, project: Path = TOP, more: dict[str, str] | None = None, python: str = ""
    ) -> None:
        self.root, self.project, self._more = root, project, more or {}
        self.python, self._is_installed = python or sys.executable, bool(python)
        self.prefect_port, self.mlflow_port = free_port(), free_port()
        self.prefect = f"http://127.0.0.1:{self.prefect_port}"
        self.mlflow = f"http://127.0.0.1:{self.mlflow_port}"
        self.workers: list[subprocess.Popen[bytes]] = []

    @property
    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_TRACKING"))}
        if self._is_installed:
            kept.pop("PYTHONPATH", None)
        own = {} if self._is_installed else {"PYTHONPATH": python_path(self.project)}
        return kept | self._more | own | {"ATELIER_ROOT": str(self.root)}

    @property
    def password(self) -> str:
        return json.loads((self.root / "stack" / "credentials.json").read_text())["password"]

    def atelier(self, *words: str, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
        """Run the command line to its end."""
        command = [self.python, "-m", "atelier", *words]
        return subprocess.run(
            command, env=self.environment, cwd=self.project, capture_output=True, text=True, timeout=timeout_s
        )

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start the command line and leave it running."""
        return subprocess.Popen(
            [self.python, "-m", "atelier", *words],
            env=self.environment,
            cwd=self.project,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def up(self) -> subprocess.CompletedProcess[str]:
        ports = ("--prefect-port", str(self.prefect_port), "--mlflow-port", str(self.mlflow_port))
        done = self.atelier("up", *ports)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    def down(self) -> None:
        for worker in self.workers:
            worker.send_signal(signal.SIGTERM)
        for worker in self.workers:
            worker.wait(30)
        done = self.atelier("down")
        assert done.returncode == 0, done.stdout + done.stderr

    def add_worker(self, pool: str) -> subprocess.Popen[bytes]:
        """`atelier worker <pool>` beside the stack's own, ignoring SIGINT as a script's & does."""
        deaf = (
            "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
            "os.execv(sys.argv[1], sys.argv[1:])"
        )
        command = [self.python, "-c", deaf, self.python, "-m", "atelier", "worker", pool]
        with open(self.root / f"{pool}.log", "ab") as log:
            worker = subprocess.Popen(command, env=self.environment, cwd=self.project, stdout=log, stderr=log)
        self.workers.append(worker)
        return worker

    def pid(self, part: str) -> int:
        """Process id of prefect, mlflow, worker-light or worker-local."""
        state = json.loads((self.root / "stack" / "state.json").read_text())
        return state[part]["holder"]["pid"]

    def api(self, method: str, path: str, body: Any = None) -> Any:
        """One call of Prefect's API, signed in."""
        request = urllib.request.Request(
            f"{self.prefect}/api{path}",
            method=method,
            data=json.dumps(body).encode() if body is not None else None,
            headers={"Content-Type": "application/json", **basic("atelier", self.password)},
        )
        if method != "GET":
            client = "tests"
            token = self.api("GET", f"/csrf-token?client={client}")["token"]
            request.add_header("Prefect-Csrf-Token", token)
            request.add_header("Prefect-Csrf-Client", client)
        text = _answer(request)
        return json.loads(text) if text else None

    def submit(self, flow: str, **parameters: Any) -> str:
        """Start a run as the form does; its id."""
        found = self.api("GET", f"/deployments/name/{flow}/atelier")
        run = self.api("POST", f"/deployments/{found['id']}/create_flow_run", {"parameters": parameters})
        return run["id"]

    def state(self, run_id: str) -> dict[str, Any]:
        return self.api("GET", f"/flow_runs/{run_id}")["state"]

    def children(self, run_id: str) -> list[dict[str, Any]]:
        """Runs of `work` that the parent run has started."""
        tags = {"tags": {"all_": [f"parent:{run_id}"]}}
        return self.api("POST", "/flow_runs/filter", {"flow_runs": tags})

    def wait_final(self, run_id: str, timeout_s: float = 300) -> dict[str, Any]:
        """The state that the run ends in."""

        def final() -> dict[str, Any] | None:
            state = self.state(run_id)
            ends = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
            return state if state["type"] in ends else None

        return wait_for(final, timeout_s, f"the end of run {run_id}")

    def ranks(self) -> list[int]:
        """Process ids of all gangs' supervisors and ranks of this store."""
        return sorted(pid for pid, words in processes().items() if is_of(words, str(self.root)))


@contextmanager
def running(root: Path, project: Path = TOP, more: dict[str, str] | None = None) -> Iterator[Served]:
    """A stack of `root` that is up, and down afterwards."""
    stack = Served(root, project, more)
    stack.up()
    try:
        yield stack
    finally:
        stack.down()


def _answer(request: urllib.request.Request) -> bytes:
    """The server's answer, requested again, as Prefect's own clients do, when its database was busy (503)."""
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            if error.code != 503 or time.monotonic() > deadline:
                raise


def is_of(words: list[str], root: str) -> bool:
    text = " ".join(words)
    return root in text and ("atelier.infra.launch.supervisor" in text or "-m atelier.engine." in text)


def descendants(pid: int) -> list[int]:
    """All processes below `pid`, those that lead sessions of their own too."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").glob("*/children"))
        children = [int(word) for task in tasks for word in task.read_text().split()]
    except OSError:
        return []
    return children + [below for child in children for below in descendants(child)]


def processes() -> dict[int, list[str]]:
    """Process id -> command line of every process here (zombies have none)."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_text().split("\0")
            except OSError:
                continue
            if any(words):
                found[int(folder.name)] = words
    return found


def wait_for(condition: Callable[[], Any], timeout_s: float, what: str) -> Any:
    """The first true value of `condition`; AssertionError when there is none in time."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.25)
    raise AssertionError(f"waited {timeout_s:.0f} s in vain for {what}")


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + b64encode(f"{user}:{password}".encode()).decode()}
