"""Slots of the local pool: a gang waits until as many are free as it has ranks; first come, first served."""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from engine.spec.error import StoppedError


class Slots:
    def __init__(self, total: int) -> None:
        self.total = total
        self._free = total
        self._queue: deque[object] = deque()
        self._changed = threading.Condition()

    @contextmanager
    def claim(self, count: int, stop: threading.Event) -> Iterator[None]:
        """Hold `count` slots (at most all there are) while the block runs; StoppedError when `stop` is set in
        the wait.
        """
        count, ticket = min(count, self.total), object()
        with self._changed:
            self._queue.append(ticket)
            while self._queue[0] is not ticket or self._free < count:
                self._changed.wait(0.1)
                if stop.is_set():
                    self._queue.remove(ticket)
                    self._changed.notify_all()
                    raise StoppedError("stopped while waiting for a slot")
            self._queue.popleft()
            self._free -= count
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._free += count
                self._changed.notify_all()
