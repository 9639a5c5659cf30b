"""The Prefect server of one run: `python -m flows.cli.server`, ended with the process that started it.

Prefect's own temporary server shares the terminal's process group, so that Ctrl-C ends it before the flow has
told it of its stop; and it stays behind when the flow is killed. This one leads a session of its own and ends
when its standard input does.
"""

import fcntl
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

from engine.spec.error import AtelierError

PROJECT = Path(__file__).resolve().parent.parent.parent
EPHEMERAL = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
FAREWELL_S = 5.0  # for what is still to be written when the flow's process has ended
PATIENCE_S = 120.0

_started: list["Server"] = []  # one a process


class Server:
    """A server whose address is known at once; requests wait until it answers."""

    def __init__(self, home: Path) -> None:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.log = home / "server.err"
        listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/api"
        with open(self.log, "wb") as log, listener:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "flows.cli.server", str(listener.fileno()), str(home)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=os.environ | EPHEMERAL,
                pass_fds=(listener.fileno(),),
                start_new_session=True,
                cwd=PROJECT,
            )

    def wait(self) -> None:
        """Return when it answers; AtelierError with its own words when it does not come up."""
        deadline = time.monotonic() + PATIENCE_S
        while self.process.poll() is None and time.monotonic() < deadline:
            with (
                suppress(urllib.error.URLError, OSError),
                urllib.request.urlopen(self.url + "/health", timeout=PATIENCE_S),
            ):
                return
            time.sleep(0.05)
        words = self.log.read_text(errors="replace").strip().splitlines()[-1:] or ["no word"]
        raise AtelierError(f"Prefect's server did not start: {words[0]} (all of it: {self.log})")


def own_server(home: Path) -> Server:
    """This process's server, started by the first call."""
    if not _started or _started[0].process.poll() is not None:
        _started[:] = [Server(home)]
    return _started[0]


def is_own(url: str) -> bool:
    """True when no server is configured, or the one that `own_server` started."""
    return not url or any(server.url == url for server in _started)


def main(descriptor: int, home: Path) -> None:
    """Serve on the listening socket `descriptor` until standard input ends. Servers of one home start one
    after another: each brings the database up to date, which two at once cannot.
    """
    import uvicorn  # with Prefect's server: seconds that only this process spends
    from prefect.server.api.server import create_app

    from infra.stack.one_writer import one_writer
    from infra.stack.tables import make_tables

    one_writer()
    server = uvicorn.Server(uvicorn.Config(create_app, factory=True, log_level="error", lifespan="on"))

    def watch() -> None:
        with suppress(OSError):
            while os.read(0, 4096):
                pass
        server.should_exit = True
        time.sleep(FAREWELL_S)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
    turn = (home / "starting").open("w")
    fcntl.flock(turn, fcntl.LOCK_EX)
    make_tables()

    def release() -> None:
        while not server.started:
            time.sleep(0.05)
        turn.close()

    threading.Thread(target=release, daemon=True).start()
    server.run(sockets=[socket.socket(fileno=descriptor)])


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
