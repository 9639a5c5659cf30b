"""The Prefect server of one run: `python -m atelier.flows.run.embedded_server`, ended with who started it.

Prefect's own temporary server shares the terminal's process group, so that Ctrl-C ends it before the flow has
told it of its stop; and it stays behind when the flow is killed. This one leads a session of its own and ends
when its standard input does. When it dies or hangs in the middle of a run it is started again at the same
address: whoever asks meanwhile waits, because the process that started it keeps the listening socket.
"""

import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path

from atelier import IMPORT_ROOT
from atelier.engine.config.error import AtelierError

EPHEMERAL = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
FAREWELL_S = 5.0  # for what is still to be written when the flow's process has ended
PATIENCE_S = 240.0  # for its start: on a machine with ten times as much to do as cores it takes two minutes
LOOK_S = 1.0
ASK_S, ANSWER_S, SILENT_S = 5.0, 10.0, 60.0  # between two questions, for an answer, until it is held to hang
RESTARTS = 3

Say = Callable[[str], None]
_started: list["EmbeddedServer"] = []  # one a process


class EmbeddedServer:
    """A server whose address is known at once; requests wait until it answers."""

    def __init__(self, home: Path) -> None:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.home, self.log = home, home / "server.err"
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/api"
        self._keeper: threading.Thread | None = None
        self._ended = threading.Event()
        self._restarts = 0
        self.is_left = False  # it has died too often, and is not started again
        self.process = self._start()

    def revive(self) -> None:
        """Start one that was left once more, at the same address."""
        self.is_left = False
        if self._keeper is not None:
            self._keeper.join()
        self._keeper = None
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        self._is_up, self._looks_stopped = False, 0
        self._heard = self._asked = time.monotonic()
        descriptor = self._listener.fileno()
        with open(self.log, "ab" if self._restarts else "wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "atelier.flows.run.embedded_server", str(descriptor), str(self.home)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=os.environ | EPHEMERAL | {"PREFECT_HOME": str(self.home)},
                pass_fds=(descriptor,),
                start_new_session=True,
                cwd=IMPORT_ROOT,
            )

    def wait(self) -> None:
        """Return when it answers; AtelierError with its own words when it does not come up."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and not self.is_left:
            if self._answers(deadline - time.monotonic()):  # a new server answers what the dead one was asked
                return
            if self._keeper is None and self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise AtelierError(f"Prefect's server did not start: {self._words()} (all of it: {self.log})")

    def keep(self, say: Say) -> None:
        """Start it again from now on when it dies or hangs, with one line each time; three times at most
        until this is asked again.
        """
        self._say, self._restarts = say, 0
        if self._keeper is None:
            self._keeper = threading.Thread(target=self._watch, name="Prefect's server", daemon=True)
            self._keeper.start()

    def close(self) -> None:
        """End it and wait until it has."""
        self._ended.set()
        if self._keeper is not None:
            self._keeper.join()
        self._reap()
        self._listener.close()

    def _reap(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _watch(self) -> None:
        while not self.is_left and not self._ended.wait(LOOK_S):
            trouble = self._trouble()
            if trouble:
                self._begin_again(trouble)
        self._refuse()

    def _refuse(self) -> None:
        """Answer in the place of a server that was left: where nobody does, Prefect's client asks for
        minutes; after this it does not ask again.
        """
        self._listener.settimeout(LOOK_S)
        while self.is_left and not self._ended.is_set():
            with suppress(OSError):
                asking, _ = self._listener.accept()
                with asking:
                    asking.settimeout(ANSWER_S)
                    asking.recv(1 << 16)
                    asking.sendall(b"HTTP/1.1 500 Left\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    def _trouble(self) -> str:
        """What is wrong with it just now; '' when nothing is."""
        code = self.process.poll()
        if code is not None:
            return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        self._looks_stopped = self._looks_stopped + 1 if is_stopped(self.process.pid) else 0
        if self._looks_stopped > 1:  # once may be a whole machine's pause
            return "was stopped"
        now = time.monotonic()
        if now - self._asked < (ASK_S if self._is_up else LOOK_S):
            return ""
        self._asked = now
        if self._answers(ANSWER_S if self._is_up else LOOK_S):
            self._is_up, self._heard = True, time.monotonic()
        return "does not answer" if now - self._heard > (SILENT_S if self._is_up else PATIENCE_S) else ""

    def _begin_again(self, trouble: str) -> None:
        self.process.kill()
        self._reap()
        is_broken = not self._is_up and self.process.returncode > 0  # it would end the same way again
        if is_broken or self._restarts >= RESTARTS:
            self.is_left = True
            self._say(f"Prefect's server {trouble} ({self._words()}): the run goes on without its page")
            return
        self._restarts += 1
        self.process = self._start()
        self._say(f"Prefect's server {trouble}: started again")

    def _answers(self, timeout_s: float) -> bool:
        with (
            suppress(urllib.error.URLError, OSError, HTTPException),
            urllib.request.urlopen(self.url + "/health", timeout=max(timeout_s, LOOK_S)),
        ):
            return True
        return False

    def _words(self) -> str:
        """The last that it wrote."""
        return (self.log.read_text(errors="replace").strip().splitlines()[-1:] or ["no word"])[0]


def is_stopped(pid: int) -> bool:
    """True for a process of this machine that SIGSTOP holds."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (OSError, IndexError):
        return False


def embedded_server(home: Path) -> EmbeddedServer:
    """This process's server, started by the first call. Prefect reads its address once, so it stays the same
    one, dead or alive.
    """
    if not _started:
        _started.append(EmbeddedServer(home))
    elif _started[0].is_left:
        _started[0].revive()
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

    from atelier.infra.stack.prefect_database import make_tables, one_writer

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
