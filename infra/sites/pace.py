"""Limit the bytes that an agent sends in a second, for a link that others share or to try a slow one."""

import threading
import time
from collections.abc import Iterable, Iterator

PIECE = 1 << 16  # bytes sent at once under a limit
MEGA, BITS = 1e6, 8


class Pace:
    """`mbps`: most Mbit/s of all bodies to all peers together; 0 = no limit."""

    def __init__(self, mbps: float = 0.0) -> None:
        self._rate, self._free = mbps * MEGA / BITS, 0.0
        self._lock = threading.Lock()

    def paced(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """The bytes of `blocks`, each piece when the ones before it have had their time."""
        for block in blocks:
            if not self._rate:
                yield block
                continue
            for begin in range(0, len(block), PIECE):
                piece = block[begin : begin + PIECE]
                with self._lock:
                    wait = self._free - time.monotonic()
                    self._free = time.monotonic() + max(0.0, wait) + len(piece) / self._rate
                time.sleep(max(0.0, wait))
                yield piece
