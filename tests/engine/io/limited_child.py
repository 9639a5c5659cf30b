"""Work of the process of test_limited_process.py."""

import os
import signal
import socket
from typing import Any

from atelier.engine.config.error import ConfigError, DataError
from atelier.engine.io.limited_process import Limits, answer_all


def serve(channel: socket.socket, limits: Limits) -> None:
    answer_all(channel, limits, act)


def act(request: Any) -> Any:
    what, given = request
    if what == "echo":
        return given
    if what == "memory":
        return len(b"x" * given)
    if what == "loop":
        while True:
            pass
    if what == "one operation":
        return sum([[1]] * given, [])  # noqa: RUF017
    if what == "signal":
        os.kill(os.getpid(), given)
    if what == "wait":
        signal.pause()
    kinds = {"config": ConfigError, "data": DataError, "panic": Panic, "deep": RecursionError}
    raise kinds[what](*given)


class Panic(BaseException):
    """As pyo3's, of libraries in Rust."""
