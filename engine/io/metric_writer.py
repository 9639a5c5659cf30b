"""Write a trajectory's metric lines to sealed segments in `<trajectory>/metrics/`. Torch-free.

A segment appears completely or not at all and never changes, so any store can hold it and any process may
read it meanwhile.
"""

import json
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from atelier.engine.config.metric import FOLDER, MetricLine, is_segment, segment_name
from atelier.engine.io.storage import is_local, join, names, writing

SEAL_AFTER = 10.0  # longest wait of a line, seconds
LOOK = "eval/"


def next_attempt(url: str, at_least: int) -> int:
    """The attempt number of this process's segments: above all earlier ones in the folder, so that the latest
    attempt supersedes them.
    """
    earlier = [int(name.split("-")[1]) for name in names(join(url, FOLDER)) if is_segment(name)]
    return max([at_least, *(number + 1 for number in earlier)])


class Segments:
    """Buffers lines and seals them into files at least every ten seconds; for remote stores in a thread, so
    that a hanging store does not block training.
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
        """Add a line. Seal if it has held-out losses, or if the oldest line would otherwise wait more than
        ten seconds.
        """
        now = self._clock()
        pace = now - self._latest if self._lines else 0.0
        if not self._lines:
            self._opened = now
        self._latest = now
        self._lines.append(json.dumps(line.model_dump(), separators=(",", ":"), allow_nan=False))
        is_look = any(name.startswith(LOOK) for name in line.values)  # rare and needed for decisions
        if is_look or now + pace - self._opened >= SEAL_AFTER:
            with suppress(OSError):  # lines stay buffered; the next checkpoint's flush reports the error
                self._seal()

    def flush(self) -> None:
        """Seal all lines and wait until they are written."""
        if self._under_way is not None:
            with suppress(Exception):  # _settle takes the lines back
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
        """Take back the lines of a failed write."""
        if self._under_way is not None and self._under_way[1].exception() is not None:
            self._lines = self._under_way[0] + self._lines
        self._under_way = None

    def _take(self) -> tuple[str, bytes]:
        """The next segment: its path and all buffered lines."""
        self._number += 1
        place = join(self.url, FOLDER, segment_name(self.attempt, self._number))
        return place, ("\n".join(self._lines) + "\n").encode()

    def _write(self, segment: tuple[str, bytes]) -> None:
        place, content = segment
        with writing(place) as file:
            file.write(content)
