"""Slots of a pool on this machine: a gang waits until as many are free as it has ranks; first come, first
served. Locked files: all processes of the machine share them, and a dead one's are free at once.
"""

import fcntl
import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from engine.spec.error import StoppedError
from engine.spec.pool import Pool
from infra.machine import num_cores

POLL_S = 0.1


def num_slots(pool: Pool) -> int:
    """Ranks that may run at once on one machine of the pool."""
    if pool.slots != "auto":
        return int(pool.slots)
    return pool.gpus_per_node or pool.gpus or num_cores()


class Slots:
    def __init__(self, total: int, folder: Path) -> None:
        """`total` slots, the files of which lie in `folder`."""
        self.total, self._folder = total, folder
        self._queue: deque[object] = deque()
        self._mutex = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    @contextmanager
    def claim(self, count: int, stop: threading.Event) -> Iterator[None]:
        """Hold `count` slots (at most all there are) while the block runs; StoppedError when `stop` is set in
        the wait.
        """
        held: list[int] = []
        ticket = object()
        with self._mutex:
            self._queue.append(ticket)
        try:
            door = self._at_the_door(ticket, stop)
            try:
                self._collect(min(count, self.total), held, stop)
            finally:
                os.close(door)
                self._leave(ticket)
            yield
        finally:
            self._leave(ticket)
            for descriptor in held:
                os.close(descriptor)

    def _at_the_door(self, ticket: object, stop: threading.Event) -> int:
        """Whoever holds the door is the only one that collects slots: no two gangs hold half of what both
        need.
        """
        while True:
            if self._queue[0] is ticket and (door := self._lock("door")) is not None:
                return door
            _wait(stop)

    def _collect(self, count: int, held: list[int], stop: threading.Event) -> None:
        taken: set[int] = set()
        while True:
            for number in range(self.total):
                if len(held) == count:
                    return
                if number not in taken and (found := self._lock(f"slot-{number}")) is not None:
                    taken.add(number)
                    held.append(found)
            if len(held) == count:
                return
            _wait(stop)

    def _lock(self, name: str) -> int | None:
        descriptor = os.open(self._folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return None
        return descriptor

    def _leave(self, ticket: object) -> None:
        with self._mutex, suppress(ValueError):
            self._queue.remove(ticket)


def _wait(stop: threading.Event) -> None:
    if stop.wait(POLL_S):
        raise StoppedError("stopped while waiting for a slot")
