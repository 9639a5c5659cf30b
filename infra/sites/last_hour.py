"""Bytes that have crossed to and from peers in the last hour, by this machine's clock."""

import time
from collections import deque

HOUR_S = 3600.0


class LastHour:
    """By peer; whoever uses it has a lock around it."""

    def __init__(self) -> None:
        self._crossed: dict[str, deque[tuple[float, int]]] = {}  # when, and how many

    def add(self, peer: str, size: int, at: float | None = None) -> None:
        """So many bytes have crossed `at` a time, by default now; fewer than none of those that were counted
        are not to be counted again.
        """
        crossed, at = self._crossed.setdefault(peer, deque()), time.time() if at is None else at
        crossed.append((at, size))
        while crossed and not self._is_in(crossed[0][0]):
            crossed.popleft()

    def of(self, peer: str) -> int:
        return sum(size for at, size in self._crossed.get(peer, ()) if self._is_in(at))

    def _is_in(self, at: float) -> bool:
        """What is later than now was noted before this machine's clock was set back."""
        now = time.time()
        return now - HOUR_S < at <= now + 1
