"""Client of the fork server: a process that has imported the ranks' modules and forks them, so that a rank
starts in milliseconds: `python -m atelier.engine.io.fork_server <name>`, with one end of a Unix socket as
standard input. The server is engine/io/forking.py.

The server imports the modules named in the first message and initialises nothing: when it forks there is no
thread, CUDA context or process group. The owner of the other end opens connections; each can start processes
and receives their exit codes. A started process gets the environment, descriptors, session and visible
arguments of an executed one. The server ends when its standard input and all connections are closed and the
processes have ended. Linux only (pidfd); torch-free at first. multiprocessing's fork server is not used: it
passes pickles and reports exit codes only to its parent process.
"""

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from atelier.engine.io.forking import MESSAGE, Answer, ForkingProcess, StartRequest

TITLE = 512  # characters reserved in its argument memory for the arguments of forked processes
PATIENCE_S = 5.0  # wait for the exit of forked processes
ANSWER_S = 300.0  # wait for imports and a fork, even on a busy machine


class Process(Protocol):  # of a rank, executed or forked
    pid: int

    def poll(self) -> int | None:
        """Its exit code, -N for signal N; None while it runs."""
        ...

    def wait(self) -> int: ...

    def send_signal(self, number: int, /) -> None: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


class Refused(OSError):
    """The server is gone or cannot start this process. Nothing was started: execute it instead."""


def is_possible() -> bool:
    """Whether this system supports the server."""
    return hasattr(os, "pidfd_open") and hasattr(socket, "SOCK_SEQPACKET")


class ForkServer:
    """Starts the server process, which imports in the background. Close it; it also ends with its owner."""

    def __init__(self, modules: Sequence[str], env: Mapping[str, str], cwd: str, whose: str = "") -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "atelier.engine.io.fork_server", whose, " " * TITLE],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=dict(env),
                cwd=cwd,
                start_new_session=True,
            )
        self._control = ours
        with suppress(OSError):  # a dead server is detected by `connect`
            ours.send(json.dumps(list(modules)).encode())
        self._is_used = False

    def connect(self) -> socket.socket:
        """A new connection, to pass on as a descriptor. Raises Refused if the server is gone."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                socket.send_fds(self._control, [b"connect"], [theirs.fileno()])
        except OSError as error:
            ours.close()
            raise Refused(f"the fork server is gone ({error})") from None
        self._is_used = True
        return ours

    def close(self) -> None:
        """Accept no more connections and end the server; forked processes are not affected."""
        self._control.close()
        if self._is_used:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(PATIENCE_S)
        self.process.terminate()
        self.process.wait()


class Connection:
    """Starts processes over a connection to the server and receives their exit codes."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._codes: dict[int, int] = {}
        self.is_open = True

    def start(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        out: int,
        err: int,
        inherited: Mapping[str, int],
        is_stopped: Callable[[], bool] = bool,
    ) -> "Forked":
        """Run `module`.main(arguments) in a process with its own session. `inherited`: environment variable
        -> descriptor whose number it gets.

        Raises Refused if nothing was started, also if `is_stopped` becomes true while waiting for the server.
        """
        # a process whose start was not acknowledged must not run: it waits for a byte
        wait_end, go_end = os.pipe()
        try:
            request: StartRequest = {
                "module": module,
                "arguments": list(arguments),
                "env": dict(env),
                "cwd": cwd,
                "inherited": list(inherited),
            }
            descriptors = [out, err, wait_end, *inherited.values()]
            try:
                socket.send_fds(self._channel, [json.dumps(request).encode()], descriptors)
            except OSError as error:
                raise Refused(f"the fork server takes no request ({error})") from None
            answer, pidfds = self._answer(is_stopped)
            if "refused" in answer:
                raise Refused(answer["refused"])
            os.write(go_end, b"!")
        finally:
            os.close(go_end)
            os.close(wait_end)
        return Forked(pid=answer.get("pid", 0), pidfd=pidfds[0], connection=self)

    def _answer(self, is_stopped: Callable[[], bool]) -> tuple[Answer, list[int]]:
        deadline = time.monotonic() + ANSWER_S
        self._channel.settimeout(0.2)
        while True:
            try:
                data, descriptors, _, _ = socket.recv_fds(self._channel, MESSAGE, 1)
            except TimeoutError:
                if time.monotonic() < deadline and not is_stopped():
                    continue
                data, descriptors, reason = b"", [], "stopped" if is_stopped() else f"in {ANSWER_S:.0f} s"
            except OSError as error:
                data, descriptors, reason = b"", [], str(error)
            else:
                reason = "it ended"
            if not data:
                self.is_open = False
                raise Refused(f"the fork server gave no answer ({reason})")
            message: Answer = json.loads(data)
            if "code" not in message:
                return message, descriptors
            self._codes[message.get("pid", 0)] = message["code"]

    def close(self) -> None:
        self.is_open = False
        self._channel.close()

    def code_of(self, pid: int) -> int | None:
        """The exit code of `pid` reported by the server; None if not reported yet."""
        self._channel.setblocking(False)
        while self.is_open and pid not in self._codes:
            try:
                data = self._channel.recv(MESSAGE)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.is_open = False
                break
            message: Answer = json.loads(data)
            self._codes[message.get("pid", 0)] = message.get("code", 0)
        return self._codes.pop(pid, None)  # a later process may get the same pid


@dataclass
class Forked:
    """A process that the server has forked."""

    pid: int
    pidfd: int
    connection: Connection
    code: int | None = field(default=None, init=False)
    ended_at: float = field(default=0.0, init=False)  # when the pidfd first reported it

    def poll(self) -> int | None:
        if self.code is None:
            self.code = self.connection.code_of(self.pid)
        if self.code is None and _has_ended(self.pidfd, 0.0):
            self.ended_at = self.ended_at or time.monotonic()
            if time.monotonic() - self.ended_at > PATIENCE_S:  # the server hangs
                self.connection.is_open = False
            if not self.connection.is_open:
                self.code = -signal.SIGKILL  # the exit code is lost; the output decides
        if self.code is not None and self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
        return self.code

    def wait(self) -> int:
        while (code := self.poll()) is None:
            _has_ended(self.pidfd, 1.0)
            time.sleep(0.005)  # wait for the server's message
        return code

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        if self.pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, number)


def _has_ended(pidfd: int, timeout: float) -> bool:
    with selectors.PollSelector() as selector:
        selector.register(pidfd, selectors.EVENT_READ)
        return bool(selector.select(timeout))


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=os.dup(0))
    if modules := control.recv(MESSAGE):
        ForkingProcess(control, json.loads(modules)).run()


if __name__ == "__main__":
    main()
