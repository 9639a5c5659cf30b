"""One process of the local stack: started in a session of its own, found again by its identity, ended with
all that it started.
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
from typing import Any

from atelier import IMPORT_ROOT
from atelier.engine.config.error import AtelierError, ConfigError
from atelier.infra.store.lease import Holder

PATIENCE_S = 90.0
GRACE_S = 20.0


@dataclass(frozen=True, kw_only=True)
class Service:
    """How a process is started, and how one knows that it is ready."""

    name: str
    arguments: tuple[str, ...]
    environment: dict[str, str]
    ready: str = ""  # a URL that answers, with whatever status, when it is
    url: str = ""
    umask: int = -1  # of what it writes; -1: the caller's

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", *self.arguments]


def start(service: Service, folder: Path) -> dict[str, Any]:
    """Start it in the background; its words go to `<folder>/<name>.log`, which only its owner reads. Returns
    what finds it again.
    """
    log = folder / f"{service.name}.log"
    with open(log, "ab", opener=_open_private) as out:
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
    return {"holder": asdict(Holder.of(process.pid, service.name)), "url": service.url, "log": str(log)}


def _open_private(path: str, flags: int) -> int:
    descriptor = os.open(path, flags, 0o600)
    os.fchmod(descriptor, 0o600)  # one that an older version made
    return descriptor


_children: list[subprocess.Popen[bytes]] = []  # kept so that an early end is reaped and seen


def is_running(entry: dict[str, Any]) -> bool:
    """True when the process of a state entry still lives."""
    for child in _children:
        child.poll()
    return "holder" in entry and not Holder(**entry["holder"]).is_gone()


def wait_ready(service: Service, entry: dict[str, Any]) -> None:
    """Return when it answers; AtelierError with its last words when it ends or stays silent."""
    deadline = time.monotonic() + PATIENCE_S
    while service.ready and time.monotonic() < deadline:
        if answers(service.ready):
            return
        if not is_running(entry):
            raise AtelierError(f"{service.name} did not start: {_last_words(entry)} (all: {entry['log']})")
        time.sleep(0.1)
    if service.ready:
        raise AtelierError(f"{service.name} did not answer within {PATIENCE_S:.0f} s (see {entry['log']})")


def answers(url: str, timeout_s: float = 5.0) -> bool:
    """True when a server is there, whatever it says."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s):
            return True
    except urllib.error.HTTPError:
        return True
    except (urllib.error.URLError, OSError):
        return False


def check_port(name: str, port: int) -> None:
    """Refuse a port that something else has."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ConfigError(
                f"--{name}-port", f"{port} cannot be used: {reason}", f"choose another: --{name}-port N"
            ) from None


def stop(entry: dict[str, Any]) -> None:
    """SIGTERM to the process, SIGKILL to its session after the grace time; returns when it is gone."""
    holder = Holder(**entry["holder"])
    if not is_running(entry):
        return
    with suppress(ProcessLookupError):
        os.kill(holder.pid, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    while is_running(entry) and time.monotonic() < deadline:
        time.sleep(0.05)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(holder.pid, signal.SIGKILL)  # what it may have left in its session
    while is_running(entry):
        time.sleep(0.05)


def _last_words(entry: dict[str, Any]) -> str:
    with suppress(OSError):
        lines = [line.strip() for line in Path(entry["log"]).read_text(errors="replace").splitlines()]
        return next((line for line in reversed(lines) if line), "no word")
    return "no word"
