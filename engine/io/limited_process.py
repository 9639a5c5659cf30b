"""Run a library on untrusted files in a process with limited memory and processor time: python -m
atelier.engine.io.limited_process MODULE MEMORY CPU_S, with a socket as stdin. Torch-free.

A hostile file can only end this process; no signal handler, exception or lock of the library interferes. The
child imports MODULE under its limits and calls its `serve(channel, limits)`. Messages are a kind (one byte),
a number of bytes, and the bytes.
"""

import importlib
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from typing_extensions import Buffer

from atelier.engine.config.base import Json
from atelier.engine.config.error import AtelierError, ConfigError, DataError, printable

HEAD = struct.Struct("<cQ")
ASK, ANSWER, REFUSED = b"A", b"B", b"E"
MOST_MESSAGE = 1 << 30  # bytes of a request or an answer
SILENCE_S = 300.0  # limit without any answer
NO_MEMORY = 88  # exit code
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
SECRET = ("PREFECT_", "MLFLOW_")  # variables with credentials, which untrusted files do not need
SETTINGS = dict.fromkeys(ONE_THREAD, "1") | {"RUST_BACKTRACE": "0"}


class Limits(NamedTuple):
    """`memory`: bytes of address space; `cpu_s`: seconds of processor time per request of `answer_all`, 0 =
    no limit.
    """

    memory: int
    cpu_s: float = 0.0

    def memory_told(self) -> str:
        return f"takes more than {self.memory >> 20} MiB of memory"


class LimitError(AtelierError):
    """The process ended before it answered. The text gives the reason as the end of a sentence."""

    exit_code = 2


class LimitedProcess:
    """The process that runs `module`, started with the first request, and again if it has ended."""

    def __init__(self, module: str, limits: Limits, silence_s: float = SILENCE_S) -> None:
        self._module, self._limits, self._silence_s = module, limits, silence_s
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None

    @property
    def is_running(self) -> bool:
        return self._channel is not None

    def channel(self) -> socket.socket:
        """The socket to the process."""
        if self._channel is None:
            ours, theirs = socket.socketpair()
            limits = [str(limit) for limit in self._limits]
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "atelier.engine.io.limited_process", self._module, *limits],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={key: one for key, one in os.environ.items() if not key.startswith(SECRET)}
                    | SETTINGS,
                )
            ours.settimeout(self._silence_s)
            self._channel = ours
            self._stop = weakref.finalize(self, _stop, self._process, ours)
        return self._channel

    def ask(self, request: Json) -> Json:
        """The module's answer. Raises the ConfigError or DataError of its refusal, and LimitError if the
        process ends or is silent.
        """
        try:
            channel = self.channel()
            send(channel, ASK, json.dumps(request).encode())
            kind, body = receive(channel, MOST_MESSAGE)
            answer: Json = json.loads(bytes(body))
        except (EOFError, ConnectionError, ValueError):
            how = self.end()
            is_killed = how.startswith("ended")  # as Rust does without memory
            told = f" (it has {self._limits.memory >> 20} MiB of memory)" if is_killed else ""
            raise LimitError(how + told) from None
        except TimeoutError:
            self.close()
            raise LimitError(f"gives no answer in {self._silence_s:g} s") from None
        except BaseException:  # such as Ctrl-C: the answer would be mistaken for the next request's
            self.close()
            raise
        if kind == REFUSED:
            assert isinstance(answer, list)
            words = [str(word) for word in answer]
            raise ConfigError(*words) if len(words) > 1 else DataError(*words)
        return answer

    def end(self) -> str:
        """End the process, which has ended or closed its socket; returns the cause in words."""
        if self._process is None:
            return "gave no answer"
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        code = self._process.poll() or 0
        self.close()
        if -code == signal.SIGPROF:
            return f"takes more than {self._limits.cpu_s:g} seconds of processor time"
        if code == NO_MEMORY:
            return self._limits.memory_told()
        return f"ended with signal {-code}" if code < 0 else "gave no answer"

    def close(self) -> None:
        """End the process at once."""
        if self._channel is not None:
            self._stop()
        self._process = self._channel = None


def _stop(process: subprocess.Popen[bytes], channel: socket.socket) -> None:
    process.kill()
    process.wait()
    channel.close()


def send(channel: socket.socket, kind: bytes, *parts: Buffer) -> None:
    channel.sendall(HEAD.pack(kind, sum(memoryview(part).nbytes for part in parts)))
    for part in parts:
        channel.sendall(part)


def receive(channel: socket.socket, most: int, room: Buffer = b"") -> tuple[bytes, memoryview]:
    """A message of at most `most` bytes, in `room` if it fits. Raises EOFError if the other end is closed or
    sends more.
    """
    kind, length = HEAD.unpack(_exactly(channel, memoryview(bytearray(HEAD.size))))
    if length > most:
        raise EOFError
    view = memoryview(room)
    return kind, _exactly(channel, (view if length <= len(view) else memoryview(bytearray(length)))[:length])


def _exactly(channel: socket.socket, target: memoryview) -> memoryview:
    done = 0
    while done < len(target):
        count = channel.recv_into(target[done:])
        if not count:
            raise EOFError
        done += count
    return target


def answer_all(channel: socket.socket, limits: Limits, act: Callable[[Json], Json]) -> None:
    """In the child: answer each of the parent's requests with the result of `act`, or with its refusal.
    Anything that a library raises is a refusal, panics of Rust libraries included, which are not Exceptions.
    """
    while True:
        _, body = receive(channel, MOST_MESSAGE)
        signal.setitimer(signal.ITIMER_PROF, limits.cpu_s)  # SIGPROF has no handler and ends the process
        kind, reply = _tried(act, body, limits)
        signal.setitimer(signal.ITIMER_PROF, 0)
        send(channel, kind, json.dumps(reply).encode())


def _tried(act: Callable[[Json], Json], body: memoryview, limits: Limits) -> tuple[bytes, Json]:
    try:
        return ANSWER, act(json.loads(bytes(body)))
    except ConfigError as error:
        return REFUSED, [error.place, error.problem, error.way_out]
    except DataError as error:
        return REFUSED, [str(error)]
    except MemoryError:
        return REFUSED, [limits.memory_told()]
    except BaseException as error:
        return REFUSED, [fault(error)]


def fault(error: BaseException) -> str:
    """A library's error on one line."""
    said = printable(" ".join(str(error).split()))
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def main(module: str, memory: str, cpu_s: str) -> None:
    """Limit this process and serve until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which closes the socket
    limits = Limits(int(memory), float(cpu_s))
    for kind, most in ((resource.RLIMIT_AS, limits.memory), (resource.RLIMIT_CORE, 0)):
        with suppress(ValueError, OSError):  # not supported everywhere
            resource.setrlimit(kind, (most, most))
    channel = socket.socket(fileno=sys.stdin.fileno())
    with suppress(EOFError, ConnectionError):
        try:
            importlib.import_module(module).serve(channel, limits)
        except MemoryError:  # for the request or answer itself
            os._exit(NO_MEMORY)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
