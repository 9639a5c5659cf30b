"""`mlflow models serve` of a registered version, and the processes under it."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.checkout import python_path
from tests.ports import free_port


class Server:
    """`mlflow models serve` on loopback, and the processes under it."""

    def __init__(self, folder: Path, uri: str) -> None:
        self.port = free_port()
        command = f"-m mlflow models serve -m models:/tiny@latest --env-manager local --port {self.port}"
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # MLflow starts uvicorn
        self.log = folder / "serve.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *command.split()],
                env=os.environ | {"MLFLOW_TRACKING_URI": uri, "PATH": path, "PYTHONPATH": python_path()},
                cwd=folder,
                stdout=log,
                stderr=log,
            )

    def is_up(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{self.port}/ping", timeout=5).status == 200
        except OSError:
            return False

    def ask(self, **document: Any) -> tuple[int, Any]:
        """Status and answer of a request to /invocations."""
        return self.send(json.dumps(document), "application/json")

    def send(self, body: str, kind: str) -> tuple[int, Any]:
        """The same of a body of any kind."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/invocations", body.encode(), {"Content-Type": kind}
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def get(self, path: str, **headers: str) -> tuple[int, str]:
        """Status and text of the answer to a GET with these headers."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def generators(self) -> list[int]:
        """Ids of the processes under the server that generate."""
        known = [*processes()]
        below = {self.process.pid}
        while more := {pid for pid, parent, _ in known if parent in below} - below:
            below |= more
        return [pid for pid, _, command in known if pid in below and "atelier.engine.generate" in command]


def processes() -> Iterator[tuple[int, int, str]]:
    """Id, parent's id and command line of each process of this machine."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            yield int(folder.name), parent, (folder / "cmdline").read_text()
        except (OSError, UnicodeDecodeError):  # has ended
            continue
