"""The fork servers of a run: one for each number of threads that gangs ask for, since libraries read that
when they are loaded.
"""

import threading
from pathlib import Path

from engine.forkserver import ForkServer
from infra.guard import rank_env

PROJECT = str(Path(__file__).resolve().parent.parent)
MODULES = ("engine.train", "engine.evaluate", "engine.imitate", "engine.prepare")


class ForkServers:
    """Started when first asked for; `close` lets them end with what they have forked."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._servers: dict[int, ForkServer] = {}
        self._lock = threading.Lock()

    def of(self, threads: int) -> ForkServer:
        with self._lock:
            found = self._servers.get(threads)
            if found is None or found.process.poll() is not None:
                found = self._servers[threads] = ForkServer(
                    MODULES, rank_env(self._root, threads), PROJECT, self._root
                )
            return found

    def close(self) -> None:
        with self._lock:
            for server in self._servers.values():
                server.close()
