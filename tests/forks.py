"""Ranks from a fork server of this test process: what they import is imported once."""

import atexit
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from atelier.engine.io.fork_server import Connection, ForkServer, Process, is_possible
from tests.checkout import TOP

MODULES = ("atelier.engine.train", "tests.parity.gang", "tests.parity.reshard", "tests.parity.rows")

_connections: list[Connection] = []


class Started:
    """A forked process with the members of Popen that tests use."""

    def __init__(self, process: Process, stdout: IO[str], stderr: IO[str]) -> None:
        self._process, self.stdout, self.stderr = process, stdout, stderr
        self.pid = process.pid
        self.poll, self.send_signal = process.poll, process.send_signal
        self.terminate, self.kill = process.terminate, process.kill
        self.returncode: int | None = None

    def wait(self, timeout: float) -> int:
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            time.sleep(0.01)
        self.returncode = code
        return code

    def communicate(self, timeout: float) -> tuple[str, str]:
        """All output until its end, on stdout and on stderr."""
        said = ["", ""]

        def read(index: int, stream: IO[str]) -> None:
            said[index] = stream.read()
            stream.close()

        readers = [
            threading.Thread(target=read, args=each, daemon=True)
            for each in enumerate((self.stdout, self.stderr))
        ]
        for reading in readers:
            reading.start()
        for reading in readers:
            reading.join(timeout)
            if reading.is_alive():
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        self.wait(timeout)
        return said[0], said[1]


Rank = Started | subprocess.Popen[str]


def start_into(module: str, arguments: list[str], env: Mapping[str, str], out: int, err: int) -> Process:
    """`python -m module`, forked where the system can: by this test process's server, which the first call
    starts. `out` and `err` are the descriptors that it writes to.
    """
    if not is_possible():
        command = [sys.executable, "-m", module, *arguments]
        return subprocess.Popen(command, cwd=TOP, env=env, stdout=out, stderr=err)
    if not _connections:
        server = ForkServer(MODULES, env, str(TOP))
        atexit.register(server.close)
        _connections.append(Connection(server.connect()))
        atexit.register(_connections[0].close)
    return _connections[0].start(module, arguments, env=env, cwd=str(TOP), out=out, err=err, inherited={})


def start(module: str, arguments: list[str], env: Mapping[str, str]) -> Rank:
    """The same, and what it writes to be read from pipes."""
    (out, out_end), (err, err_end) = os.pipe(), os.pipe()
    try:
        process = start_into(module, arguments, env, out_end, err_end)
    finally:
        os.close(out_end)
        os.close(err_end)
    return Started(process, os.fdopen(out), os.fdopen(err))


def start_alone(module: str, path: str, log: Path) -> Process:
    """A process without a gang that writes to the end of `log`."""
    env = os.environ | {"PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    with log.open("a") as file:
        return start_into(module, [path], env, file.fileno(), file.fileno())
