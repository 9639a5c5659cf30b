"""Bytes that have crossed to and from peers in the last hour, by this machine's clock."""

import time
from collections import deque

HOUR_S = 3600.0


class LastHour:
    """Counts by peer. Callers must hold a lock."""

    def __init__(self) -> None:
        self._crossed: dict[str, deque[tuple[float, int]]] = {}  # when, and how many

    def add(self, peer: str, size: int, at: float | None = None) -> None:
        """Count bytes that crossed `at` a time, by default now; a negative `size` takes back
        earlier counts.
        """
        crossed, at = self._crossed.setdefault(peer, deque()), time.time() if at is None else at
        crossed.append((at, size))
        while crossed and not self._is_in(crossed[0][0]):
            crossed.popleft()

    def of(self, peer: str) -> int:
        return sum(size for at, size in self._crossed.get(peer, ()) if self._is_in(at))

    def _is_in(self, at: float) -> bool:
        """Whether a time is in the last hour; not if it is in the future, after the clock was set back."""
        now = time.time()
        return now - HOUR_S < at <= now + 1
