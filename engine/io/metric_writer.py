"""Metric lines of one trajectory into sealed segments under `<trajectory>/metrics/`. Torch-free.

A segment appears whole or not at all and is never touched again, so that any store can hold it and anybody
may read along.
"""

import json
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from atelier.engine.config.metric import FOLDER, MetricLine, is_segment, segment_name
from atelier.engine.io.storage import is_local, join, names, writing

SEAL_AFTER = 10.0  # seconds that a line waits at most
LOOK = "eval/"


def next_attempt(url: str, at_least: int) -> int:
    """The number for this process's segments: above every earlier attempt's in the folder, so that the latest
    attempt is the truth.
    """
    earlier = [int(name.split("-")[1]) for name in names(join(url, FOLDER)) if is_segment(name)]
    return max([at_least, *(number + 1 for number in earlier)])


class Segments:
    """Collects lines and seals them into files at least every ten seconds. A thread does it where the store
    is no folder: training does not wait for one that hangs.
    """

    def __init__(self, url: str, attempt: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.url, self.attempt = url, next_attempt(url, attempt)
        self._clock = clock
        self._lines: list[str] = []
        self._number = 0
        self._opened = self._latest = 0.0
        self._thread = None if is_local(url) else ThreadPoolExecutor(1, "metrics")
        self._under_way: tuple[list[str], Future[None]] | None = None

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
                self._seal()

    def flush(self) -> None:
        """Seal what was collected, and return when it is."""
        if self._under_way is not None:
            with suppress(Exception):  # its lines are here again then
                self._under_way[1].result()
            self._settle()
        if self._lines:
            self._write(self._take())
            self._lines = []

    def _seal(self) -> None:
        if self._thread is None:
            self.flush()
        elif self._under_way is None or self._under_way[1].done():
            self._settle()
            future = self._thread.submit(self._write, self._take())
            self._under_way, self._lines = (self._lines, future), []

    def _settle(self) -> None:
        """Have the lines back that a write, now over, did not seal."""
        if self._under_way is not None and self._under_way[1].exception() is not None:
            self._lines = self._under_way[0] + self._lines
        self._under_way = None

    def _take(self) -> tuple[str, bytes]:
        """The next segment: its file and all lines that are here."""
        self._number += 1
        place = join(self.url, FOLDER, segment_name(self.attempt, self._number))
        return place, ("\n".join(self._lines) + "\n").encode()

    def _write(self, segment: tuple[str, bytes]) -> None:
        place, content = segment
        with writing(place) as file:
            file.write(content)
