"""The fork servers of this process: one for each environment that gangs ask for, since libraries read parts
of it when they are loaded. Points of a sweep share them.
"""

import atexit
import threading
from contextlib import suppress

from atelier import IMPORT_ROOT
from atelier.engine.forkserver import ForkServer
from atelier.infra.guard import rank_env

MODULES = (
    "atelier.engine.train",
    "atelier.engine.evaluate",
    "atelier.engine.imitate",
    "atelier.engine.prepare",
)

_servers: dict[tuple[tuple[str, str], ...], ForkServer] = {}
_lock = threading.Lock()


def fork_server(root: str) -> ForkServer | None:
    """The server for gangs over the store at `root`, started when it is not there; None when it cannot be."""
    env = rank_env(root, 1)  # a rank sets its number of threads itself
    key = tuple(sorted(env.items()))
    with _lock:
        found = _servers.get(key)
        if found is not None and found.process.poll() is not None:
            found.close()
            found = None
        if found is None:
            with suppress(OSError):  # it only saves time
                found = _servers[key] = ForkServer(MODULES, env, str(IMPORT_ROOT), root)
        return found


@atexit.register
def close() -> None:
    """End them; what they have forked is not touched."""
    with _lock:
        for server in _servers.values():
            server.close()
        _servers.clear()
