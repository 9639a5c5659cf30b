"""Processes of the local stack: started in their own session, found again by process identity, ended with all
their children.
"""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypedDict

from atelier import IMPORT_ROOT
from atelier.engine.config.base import Json
from atelier.engine.config.error import AtelierError, ConfigError
from atelier.infra.store.lease import Holder

PATIENCE_S = 90.0
GRACE_S = 20.0


@dataclass(frozen=True, kw_only=True)
class Service:
    """How a process is started, and how its readiness is checked."""

    name: str
    arguments: tuple[str, ...]
    environment: dict[str, str]
    ready: str = ""  # a URL that answers, with any status, when it is ready
    url: str = ""
    umask: int = -1  # -1: the caller's

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", *self.arguments]


class ServiceEntry(TypedDict, total=False):
    """A process of the stack in its state file; without holder it was ended."""

    holder: dict[str, Json]
    url: str
    log: str


def start(service: Service, folder: Path) -> ServiceEntry:
    """Start a process in the background with its output in `<folder>/<name>.log`, readable only by its owner.
    Returns its state entry, by which it is found again.
    """
    log = folder / f"{service.name}.log"
    with open(log, "ab", opener=open_private) as out:
        process = subprocess.Popen(
            service.command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=service.environment,
            start_new_session=True,
            umask=service.umask,
            cwd=IMPORT_ROOT,
        )
    _children.append(process)
    holder = asdict(Holder.of(process.pid, service.name))
    return {"holder": holder, "url": service.url, "log": str(log)}


def open_private(path: str, flags: int) -> int:
    """An opener of files that only their owner reads."""
    descriptor = os.open(path, flags, 0o600)
    os.fchmod(descriptor, 0o600)  # the file may be an older version's
    return descriptor


_children: list[subprocess.Popen[bytes]] = []  # kept so that an early exit is reaped and noticed


def is_running(entry: ServiceEntry) -> bool:
    """True when the process of a state entry is alive."""
    for child in _children:
        child.poll()
    return "holder" in entry and not Holder.read(entry["holder"]).is_gone()


def wait_ready(service: Service, entry: ServiceEntry) -> None:
    """Wait until a process answers. Raises AtelierError when it exits (with its last output) or does not
    answer.
    """
    deadline = time.monotonic() + PATIENCE_S
    while service.ready and time.monotonic() < deadline:
        if answers(service.ready):
            return
        if not is_running(entry):
            raise AtelierError(
                f"{service.name} did not start: {_last_words(entry)} (all: {entry.get('log')})"
            )
        time.sleep(0.1)
    if service.ready:
        raise AtelierError(
            f"{service.name} did not answer within {PATIENCE_S:.0f} s (see {entry.get('log')})"
        )


def answers(url: str, timeout_s: float = 5.0) -> bool:
    """True when a server answers, with any status."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s):
            return True
    except urllib.error.HTTPError:
        return True
    except (urllib.error.URLError, OSError):
        return False


def check_proxies() -> None:
    """Raises ConfigError for proxies in the environment with which no HTTP client can be made, not even one
    for loopback.
    """
    import httpx  # 0.1 s, which Prefect's import spends anyway

    try:
        httpx.Client().close()
    except Exception as error:  # ValueError, ImportError, httpx.InvalidURL
        raise ConfigError(
            "HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY",
            f"Prefect's client cannot read them: {error}",
            "correct them or unset them",
        ) from None


def check_port(name: str, port: int) -> None:
    """Raises ConfigError for a port that is in use."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            way_out = f"choose another: --{name}-port N"
            if pid := _server_at(port):
                reason = f"process {pid}, a server that `atelier up` started for another store, listens there"
                way_out += f"; or stop it: `atelier down` with that store's ATELIER_ROOT, or kill {pid}"
            raise ConfigError(f"--{name}-port", f"{port} cannot be used: {reason}", way_out) from None


def _server_at(port: int) -> int:
    """The process of a stack's server that was started for `port`; 0 for none that can be seen."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().decode(errors="replace").split("\0")
            is_ours = "atelier.infra.stack.prefect_server" in words or "--backend-store-uri" in words
            if is_ours and str(port) in words:
                return int(path.parent.name)
    return 0


def stop(entry: ServiceEntry) -> None:
    """SIGTERM to the process, SIGKILL to its process group after the grace time; waits for the end."""
    if "holder" not in entry or not is_running(entry):
        return
    holder = Holder.read(entry["holder"])
    with suppress(ProcessLookupError):
        os.kill(holder.pid, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    while is_running(entry) and time.monotonic() < deadline:
        time.sleep(0.05)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(holder.pid, signal.SIGKILL)  # children it may have left
    while is_running(entry):
        time.sleep(0.05)


def _last_words(entry: ServiceEntry) -> str:
    with suppress(OSError):
        lines = [line.strip() for line in Path(entry.get("log", "")).read_text(errors="replace").splitlines()]
        return next((line for line in reversed(lines) if line), "no output")
    return "no output"
