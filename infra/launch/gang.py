"""Start a gang's ranks on this machine under a supervisor and follow it: progress, errors, the end.

Also the fork servers of this process: one for each environment of ranks, since libraries read parts of it
when they are loaded; the points of a sweep share them.
"""

import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from atelier import IMPORT_ROOT
from atelier.engine.config.error import AtelierError, CopiesError, StoppedError
from atelier.engine.config.message import Message, OnMessage, from_line, message_of
from atelier.engine.io.fork_server import ForkServer, Refused
from atelier.engine.io.local_url import is_path
from atelier.engine.io.user_folders import own_folder
from atelier.infra.code.provenance import check_torch
from atelier.infra.launch.orders import Orders
from atelier.infra.launch.supervisor import passed, rank_env
from atelier.infra.store.conditional_create import LEASES

PREPARES = "atelier.engine.prepare"  # the one module of ranks that imports no torch
STOPPED = 75
TAIL = 15
SCARCE = 1 << 16  # bytes: with less free disk a gang cannot even report what failed


class DiedError(AtelierError):
    """Processes were killed from outside: a retry may succeed."""


def start_gang(
    orders: Orders,
    on_message: OnMessage,
    stop: threading.Event,
    forkserver: ForkServer | None = None,
) -> None:
    """Run the gang until it ends and its records are published. Messages of rank 0 (progress, warnings) and
    of the supervisor go to `on_message`. Ranks are forked by `forkserver` where one is given, else executed.

    Raises StoppedError when `stop` is set (the gang has checkpointed then), DiedError when processes were
    killed from outside, ConfigError without torch, and the gang's own errors (DataError, AtelierError, ...).
    """
    if orders.module != PREPARES:
        check_torch(orders.name)
    orders.scratch.mkdir(parents=True, exist_ok=True, mode=0o700)
    guard = orders.write()
    with open(orders.scratch / "guard.err", "wb") as err, _connected(forkserver) as descriptors:
        supervisor = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "atelier.infra.launch.supervisor",
                str(guard),
                *map(str, descriptors),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=err,
            cwd=IMPORT_ROOT,
            env=passed(orders.root, LEASES, reads=orders.reads),  # of credentials only those it needs
            start_new_session=True,
            pass_fds=(*descriptors, *orders.held),
        )
    problems: list[Message] = []

    def receive(message: Message) -> None:
        if "error" in message:
            problems.append(message)
        if "restart" in message:
            problems.clear()
        on_message(message)

    ended = threading.Event()
    tail = threading.Thread(target=_tail, args=(orders.scratch / "rank0.out", receive, ended), daemon=True)
    ear = threading.Thread(target=_listen, args=(supervisor, receive), daemon=True)
    tail.start()
    ear.start()
    try:
        _wait(supervisor, stop)
    finally:
        if supervisor.poll() is None:
            supervisor.send_signal(signal.SIGTERM)
            supervisor.wait()
        ear.join()
        ended.set()
        tail.join()
        for pipe in (supervisor.stdin, supervisor.stdout):
            if pipe:
                with suppress(BrokenPipeError):
                    pipe.close()
    _judge(orders, supervisor.returncode, problems, stop.is_set())


@contextmanager
def _connected(forkserver: ForkServer | None) -> Iterator[list[int]]:
    """The descriptor of a fork server connection for a supervisor; empty without a running server."""
    with ExitStack() as stack:
        descriptors = []
        if forkserver is not None:
            with suppress(Refused):
                descriptors.append(stack.enter_context(forkserver.connect()).fileno())
        yield descriptors


def _wait(supervisor: subprocess.Popen[bytes], stop: threading.Event) -> None:
    while supervisor.poll() is None:
        if stop.wait(0.05):
            supervisor.send_signal(signal.SIGTERM)
            supervisor.wait()


def _judge(orders: Orders, code: int, problems: list[Message], stopped: bool) -> None:
    if code == 0:
        return
    if code != CopiesError.exit_code:  # from before a restart: it may arrive late
        problems = [each for each in problems if each.get("exit_code") != CopiesError.exit_code]
    if problems:
        raise from_line(problems[-1])
    if stopped or code == STOPPED:
        raise StoppedError("stopped")
    if shutil.disk_usage(orders.scratch).free < SCARCE:
        raise AtelierError(f"{orders.scratch}: No space left on device; make room, then run again")
    lines = []
    for path in sorted(orders.scratch.glob("*.err")):
        text = path.read_text(errors="replace").strip()
        if text:
            lines += [f"--- {path.name}", *text.splitlines()[-TAIL:]]
    if code < 0:
        reason = f"its supervisor was ended by {signal.Signals(-code).name}; the gang stops at a checkpoint"
    elif code > 128:
        reason = f"the gang was ended by {signal.Signals(code - 128).name}"
    else:
        reason = f"the gang ended with exit code {code}"
    has_died = code < 0 or (code > 128 and orders.world)
    raise (DiedError if has_died else AtelierError)(
        "\n".join([f"{reason}; its files are in {orders.scratch}", *lines])
    )


def _listen(supervisor: subprocess.Popen[bytes], receive: OnMessage) -> None:
    assert supervisor.stdout is not None
    for line in supervisor.stdout:
        with suppress(ValueError):
            if (message := message_of(json.loads(line))) is not None:
                receive(message)


def _tail(path: Path, receive: OnMessage, ended: threading.Event) -> None:
    """Follow a growing file of JSON lines until `ended` is set and all of it is read."""
    position, rest = 0, b""
    while True:
        last = ended.is_set()
        if path.exists():
            with open(path, "rb") as file:
                file.seek(position)
                block = file.read()
            position += len(block)
            *lines, rest = (rest + block).split(b"\n")
            for line in lines:
                with suppress(ValueError):
                    if (message := message_of(json.loads(line))) is not None:
                        receive(message)
        if last:
            return
        ended.wait(0.1)


def compile_cache(root: str) -> dict[str, str]:
    """Environment that keeps the cache of compiled code between gangs, private to this user."""
    folder = (Path(root) if is_path(root) else own_folder()) / "cache" / "inductor"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.chmod(folder, 0o700)
    return {"TORCHINDUCTOR_CACHE_DIR": str(folder)}


MODULES = (
    "atelier.engine.train",
    "atelier.engine.evaluate",
    "atelier.engine.examine",
    "atelier.engine.imitate",
    "atelier.engine.prepare",
)

_servers: dict[tuple[tuple[str, str], ...], ForkServer] = {}
_lock = threading.Lock()


def fork_server(root: str) -> ForkServer | None:
    """Fork server for gangs of the store at `root`, started when missing; None when it cannot start."""
    env = rank_env(root, 1)  # a rank sets its number of threads itself
    key = tuple(sorted(env.items()))
    with _lock:
        found = _servers.get(key)
        if found is not None and found.process.poll() is not None:
            found.close()
            found = None
        if found is None:
            with suppress(OSError):  # only an optimization
                found = _servers[key] = ForkServer(MODULES, env, str(IMPORT_ROOT), root)
        return found


@atexit.register
def close() -> None:
    """Stop the fork servers; processes that they forked continue."""
    with _lock:
        for server in _servers.values():
            server.close()
        _servers.clear()
