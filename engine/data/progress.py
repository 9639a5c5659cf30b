"""Progress of a preparation as JSON lines."""

import json
import time
from collections.abc import Callable
from typing import Any, TextIO


def say(stream: TextIO, document: dict[str, Any]) -> None:
    """Write one line of JSON, at once."""
    print(json.dumps(document, ensure_ascii=False), file=stream, flush=True)


class Progress:
    """Counts work and writes `{"progress": done, "total": total, "unit": unit, "rate": per_second}`, at most
    twice a second.
    """

    def __init__(
        self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic, interval: float = 0.5
    ) -> None:
        self._stream, self._clock, self._interval = stream, clock, interval
        self._spoken = -float("inf")
        self.start(0, "documents")

    def start(self, total: int, unit: str) -> None:
        """Begin a stretch of `total` units."""
        self._total, self._unit, self._done, self._began = total, unit, 0, self._clock()

    def advance(self, amount: int) -> None:
        self._done += amount
        now = self._clock()
        if now - self._spoken < self._interval:
            return
        self._spoken = now
        rate = self._done / max(now - self._began, 1e-9)
        say(
            self._stream,
            {"progress": self._done, "total": self._total, "unit": self._unit, "rate": round(rate, 1)},
        )
