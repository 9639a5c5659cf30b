"""A request to stop one run at a checkpoint: a file in the store, so that it reaches the run on any machine
that shares the store, without a server and without signals to other runs of the same process.
"""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from atelier.engine.io.storage import exists, is_local, join, remove, write_bytes
from atelier.infra.store.run_manifest import FOLDER

LOOK_S, LOOK_FAR_S = 0.5, 5.0  # between looks for a request, in a local and in a remote store


def request_cancel(root: str, run_id: str) -> None:
    """Ask the run to stop. It notices within LOOK_S, or LOOK_FAR_S."""
    write_bytes(_place(root, run_id), socket.gethostname().encode())


def withdraw(root: str, run_id: str) -> None:
    """Remove the request, if there is one."""
    with suppress(OSError):
        remove(_place(root, run_id))


@contextmanager
def obeying(root: str, run_id: str, stop: threading.Event, say: Callable[[str], None]) -> Iterator[None]:
    """During the block: set `stop` when the run is asked to stop. Call `withdraw` before the manifest says
    that it is running: an older request is not meant for a run that begins again under its id.
    """

    def check() -> None:
        if not stop.is_set() and exists(_place(root, run_id)):
            say("cancelled by `atelier cancel`: running tasks write a checkpoint")
            stop.set()

    try:
        with regularly(LOOK_S if is_local(root) else LOOK_FAR_S, check):
            yield
    finally:
        withdraw(root, run_id)


@contextmanager
def regularly(seconds: float, check: Callable[[], None]) -> Iterator[None]:
    """Call `check` every `seconds` during the block, also after a failed call."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(seconds):
            with suppress(Exception):  # whatever the error
                check()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _place(root: str, run_id: str) -> str:
    return join(root, FOLDER, f"{run_id}.cancel")
