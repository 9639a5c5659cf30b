"""Metric lines of one trajectory into sealed segments under `<trajectory>/metrics/`. Torch-free.

A segment appears whole or not at all and is never touched again, so that any store can hold it and anybody
may read along.
"""

import json
import time
from collections.abc import Callable
from contextlib import suppress

from engine.spec.metric import FOLDER, MetricLine, segment_name
from engine.storage import join, names, writing

SEAL_AFTER = 10.0  # seconds that a line waits at most
LOOK = "eval/"


def next_attempt(url: str, at_least: int) -> int:
    """The number for this process's segments: above every earlier attempt's in the folder, so that the latest
    attempt is the truth.
    """
    earlier = [int(name.split("-")[1]) for name in names(join(url, FOLDER)) if name.startswith("metrics-")]
    return max([at_least, *(number + 1 for number in earlier)])


class Segments:
    """Collects lines and seals them into files at least every ten seconds."""

    def __init__(self, url: str, attempt: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.url, self.attempt = url, next_attempt(url, attempt)
        self._clock = clock
        self._lines: list[str] = []
        self._number = 0
        self._opened = self._latest = 0.0

    def add(self, line: MetricLine) -> None:
        """Take a line; seal when it has held-out losses, or the oldest one would otherwise have waited ten
        seconds by the time the next one comes.
        """
        now = self._clock()
        pace = now - self._latest if self._lines else 0.0
        if not self._lines:
            self._opened = now
        self._latest = now
        self._lines.append(json.dumps(line.model_dump(), separators=(",", ":"), allow_nan=False))
        is_look = any(name.startswith(LOOK) for name in line.values)  # rare, and somebody may decide by it
        if is_look or now + pace - self._opened >= SEAL_AFTER:
            with suppress(OSError):  # the lines stay here; the checkpoint that needs them sealed will tell
                self.flush()

    def flush(self) -> None:
        """Seal what was collected."""
        if not self._lines:
            return
        self._number += 1
        text = "\n".join(self._lines) + "\n"
        with writing(join(self.url, FOLDER, segment_name(self.attempt, self._number))) as file:
            file.write(text.encode())
        self._lines = []
