"""The Prefect server of one run: `python -m atelier.flows.run.embedded_server`. It ends with the process that
started it.

Prefect's own temporary server shares the terminal's process group, so Ctrl-C ends it before the flow has
reported its stop; and it survives a kill of the flow. This server leads its own session and ends when its
standard input is closed. If it dies or hangs during a run it is restarted at the same address; requests wait,
because the parent keeps the listening socket.

Other users of the machine, and any web page open in a browser here, can reach the port. So it requires a
random password, which is only in the environment of the two processes, and rejects foreign host names and
origins.
"""

import fcntl
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import redirect_stderr, suppress
from http.client import HTTPException
from io import StringIO
from pathlib import Path

from pydantic import ValidationError

from atelier import IMPORT_ROOT
from atelier.engine.config.error import AtelierError, ConfigError
from atelier.engine.io.storage import is_local, local_path
from atelier.engine.io.user_folders import home
from atelier.infra.stack.database_check import PREFECT, check_database, tighten
from atelier.infra.stack.service import check_proxies, open_private
from atelier.infra.stack.settings import HOST, USER, locked, own_origins, prefect_database
from atelier.infra.stack.stack import PRIVATE, Stack, join_stack

EPHEMERAL = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
FAREWELL_S = 5.0  # seconds to write the rest after the flow's process has ended
PATIENCE_S = 240.0  # for its start: it takes two minutes under ten times the load of the cores
LOOK_S = 1.0
ASK_S, ANSWER_S, SILENT_S = 5.0, 10.0, 60.0  # between health checks, timeout of one, until it counts as hung
RESTARTS = 3

Say = Callable[[str], None]
_started: list["EmbeddedServer"] = []  # one a process


class EmbeddedServer:
    """A server with an address from the beginning; requests wait until it answers."""

    def __init__(self, home: Path) -> None:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.home, self.log = home, home / "server.err"
        self._listener = socket.create_server((HOST, 0), backlog=512)
        self._port: int = self._listener.getsockname()[1]
        self.url = f"http://{HOST}:{self._port}/api"
        self.login = f"{USER}:{secrets.token_urlsafe(24)}"
        self._keeper: threading.Thread | None = None
        self._ended = threading.Event()
        self._restarts = 0
        self.is_left = False  # it has died too often and is not restarted
        self.process = self._start()

    def client(self) -> dict[str, str]:
        """Environment of its clients."""
        return {"PREFECT_API_URL": self.url, "PREFECT_API_AUTH_STRING": self.login}

    def revive(self) -> None:
        """Restart a server that was given up, at the same address."""
        self.is_left = False
        if self._keeper is not None:
            self._keeper.join()
        self._keeper = None
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        self._is_up, self._looks_stopped = False, 0
        self._heard = self._asked = time.monotonic()
        descriptor = self._listener.fileno()
        with open(self.log, "ab" if self._restarts else "wb", opener=open_private) as log:
            return subprocess.Popen(
                [sys.executable, "-m", "atelier.flows.run.embedded_server", str(descriptor), str(self.home)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=_own_database(self.home)
                | os.environ
                | EPHEMERAL
                | {"PREFECT_HOME": str(self.home)}
                | locked(self._port, self.login),
                pass_fds=(descriptor,),
                umask=PRIVATE,
                start_new_session=True,
                cwd=IMPORT_ROOT,
            )

    def wait(self) -> None:
        """Return when it answers. Raises AtelierError with its last output if it does not start."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and not self.is_left:
            # a new server answers requests to the dead one; without one they would wait to the end
            if self._answers(min(deadline - time.monotonic(), ANSWER_S)):
                self._is_up, self._heard = True, time.monotonic()  # if it dies later, it was not broken
                return
            if self._keeper is None and self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise AtelierError(f"Prefect's server did not start: {self._words()} (full output: {self.log})")

    def keep(self, say: Say) -> None:
        """From now on restart it when it dies or hangs, and print one line each time; at most three times
        until the next call.
        """
        self._say, self._restarts = say, 0
        if self._keeper is None:
            self._keeper = threading.Thread(target=self._watch, name="Prefect's server", daemon=True)
            self._keeper.start()

    def close(self) -> None:
        """Stop it and wait for its end."""
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
        """Answer with errors in place of a server that was given up. Without answers Prefect's client retries
        for minutes; after an error it does not.
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
        """The present problem of the server; '' = none."""
        code = self.process.poll()
        if code is not None:
            return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        self._looks_stopped = self._looks_stopped + 1 if is_stopped(self.process.pid) else 0
        if self._looks_stopped > 1:  # once may be a pause of the machine
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
        is_broken = not self._is_up and self.process.returncode > 0  # it would fail again
        if is_broken or self._restarts >= RESTARTS:
            self.is_left = True
            self._say(f"Prefect's server {trouble} ({self._words()}): the run continues without its page")
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
        """Its last line of output."""
        return (self.log.read_text(errors="replace").strip().splitlines()[-1:] or ["no output"])[0]


def _own_database(home: Path) -> dict[str, str]:
    """Address of the database in `home`, unless the user set one by either variable."""
    names = ("PREFECT_API_DATABASE_CONNECTION_URL", "PREFECT_SERVER_DATABASE_CONNECTION_URL")
    return {} if any(name in os.environ for name in names) else {names[0]: prefect_database(home)}


def is_stopped(pid: int) -> bool:
    """True for a process of this machine that SIGSTOP has stopped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (OSError, IndexError):
        return False


def others_environment() -> dict[str, str]:
    """This process's environment for processes that are not clients of its server."""
    own = {item for server in _started for item in server.client().items()}
    return {key: value for key, value in os.environ.items() if (key, value) not in own}


def embedded_server(home: Path) -> EmbeddedServer:
    """This process's server, started by the first call. Prefect reads its address once, so it stays the same,
    dead or alive.
    """
    if not _started:
        _started.append(EmbeddedServer(home))
    elif _started[0].is_left:
        _started[0].revive()
    return _started[0]


def is_own(url: str) -> bool:
    """True if no server is configured, or the configured one was started by `embedded_server`."""
    return not url or any(server.url == url for server in _started)


def main(descriptor: int, home: Path) -> None:
    """Serve on the listening socket `descriptor` until standard input ends. Servers of one home start one
    after another, because two cannot migrate the database at once.
    """
    import uvicorn  # late: imports with Prefect's server take seconds

    from atelier.infra.stack.prefect_server import filtered, make_tables, one_writer  # as above

    one_writer()
    listener = socket.socket(fileno=descriptor)
    own = own_origins(listener.getsockname()[1])
    app = uvicorn.Config(lambda: filtered(own), factory=True, log_level="error", lifespan="on")
    server = uvicorn.Server(app)

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
    server.run(sockets=[listener])


EMBEDDED = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "true",
    "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "true",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    "PREFECT_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_INTERNAL_LEVEL": "CRITICAL",  # an unavailable server is reported in one line by us
    "PREFECT_CLI_PROMPT": "false",
    "PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_LATE_RUNS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_FOREMAN_ENABLED": "false",
    "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false",
}


def embed(root: str) -> EmbeddedServer | None:
    """Configure this process and start its server, before Prefect is imported. Returns None if the user
    configured a server. Raises ConfigError for a database or settings that Prefect refuses, and for proxies
    that its client cannot read.
    """
    for key, value in EMBEDDED.items():
        os.environ.setdefault(key, value)
    os.environ["PREFECT_HOME"] = str(home := _home(root))
    join_stack(root)
    check_proxies()
    if is_configured(root):
        _check_settings()
        return None
    check_database(home / "prefect.db", PREFECT)
    tighten(home / "prefect.db")
    server = embedded_server(home)
    os.environ |= server.client()
    os.environ.setdefault("PREFECT_CLIENT_MAX_RETRIES", "3")  # 2 + 4 + 8 s: by then it is up or given up
    if "prefect" in sys.modules:  # in a notebook: it read its settings at import
        from prefect.context import refresh_global_settings_context

        refresh_global_settings_context()
    _check_settings()  # while the server starts; it reads the address above
    return server


def _check_settings() -> None:
    """Raises ConfigError for a setting of the environment or a profile that Prefect rejects."""
    try:
        with redirect_stderr(StringIO()):  # Prefect prints each error twice
            from prefect.settings import get_current_settings  # late: 1.5 s

            get_current_settings()
    except ValidationError as error:
        wrong = [one for one in error.errors() if one["type"] != "default_factory_not_called"]
        about = "; ".join(f"{one['loc'][-1]}: {one['msg']}, not {one.get('input')!r}" for one in wrong)
        place = f"PREFECT_... ({error.title})"
        raise ConfigError(place, about, "correct or unset the variable, or Prefect's profile") from None


def _home(root: str) -> Path:
    """Prefect's home: the user's, or a folder of the store."""
    default = local_path(root) / "prefect" if is_local(root) else home() / ".prefect"
    return Path(os.environ.get("PREFECT_HOME", default))


def is_configured(root: str) -> bool:
    """Whether the user configured a Prefect server for this process."""
    return not is_own(os.environ.get("PREFECT_API_URL", "")) or (_home(root) / "profiles.toml").exists()


def is_seen(root: str) -> bool:
    """Whether a Prefect server runs beside the store, or is configured."""
    return bool(Stack(root).client()) or is_configured(root)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # taking all that it loaded apart takes seconds
