"""Start ranks and gangs from a fork server of this test process, so that their imports happen once."""

import atexit
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

from atelier.engine.io.fork_server import Connection, ForkServer, Process, is_possible
from tests.checkout import TOP

MODULES = (
    "atelier.engine.train", "atelier.engine.examine", "tests.parity.inference", "tests.parity.gang",
    "tests.parity.reshard", "tests.parity.rows", "tests.engine.loop.gathering",
    "tests.engine.extensions.sites.inbox_gang",
)  # fmt: skip
TIMEOUT_S = 900  # of a gang that says nothing

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


def start_gang(
    module: str, folder: Path, world: int, *given: str, is_over: Callable[[], bool] = bool
) -> None:
    """Run `module` as a gang; its errors fail the test."""
    told = gang_errors(module, folder, world, *given, is_over=is_over)
    assert not told, told


def gang_errors(
    module: str,
    folder: Path,
    world: int,
    *given: str,
    timeout_s: float = TIMEOUT_S,
    is_over: Callable[[], bool] = bool,
) -> str:
    """Run `module` as a gang; what its ranks wrote when one has failed, none has said anything for
    `timeout_s` or it `is_over`, else ''.
    """
    gang = {
        "WORLD_SIZE": str(world), "ATELIER_RENDEZVOUS": f"file://{folder}/meeting-{uuid.uuid4().hex}",
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    logs = [folder / f"gang-{world}-{rank}.log" for rank in range(world)]
    processes = []
    for rank, log in enumerate(logs):
        env = os.environ | gang | {"RANK": str(rank), "PYTHONWARNINGS": "ignore"}
        with log.open("w") as errors:
            processes.append(start_into(module, list(given), env, errors.fileno(), errors.fileno()))
    said, since = 0, time.monotonic()
    while any(process.poll() is None for process in processes):
        now = sum(log.stat().st_size for log in logs)
        said, since = now, since if now == said else time.monotonic()
        is_silent = time.monotonic() > since + timeout_s
        if is_silent or is_over() or any(process.poll() for process in processes):
            break  # one has failed: the others would wait for it
        time.sleep(0.05)
    codes = [process.poll() for process in processes]
    for process in processes:
        process.kill()
        process.wait()
    if not any(codes) and None not in codes:
        return ""
    told = [(log.name, code, _ends(log.read_text())) for log, code in zip(logs, codes, strict=True)]
    return "\n".join(f"{name}: {code} {text}" for name, code, text in told)


def _ends(text: str) -> str:
    """The end of a log, and where a crash begins: in which thread, and, before, what glibc or C++ says."""
    crash = text.find("Fatal Python error")
    return text[-3000:] if crash < 0 else f"{text[max(0, crash - 500) : crash + 3000]}\n...\n{text[-1500:]}"
