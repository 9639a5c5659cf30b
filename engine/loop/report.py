"""Output of a gang, by rank 0: progress as JSON lines on stdout, and the metric lines of its trajectories in
sealed segments in `<trajectory>/metrics/`. Torch-free.

A segment appears completely or not at all and never changes, so any store can hold it and any process may
read it meanwhile.
"""

import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from atelier.engine.config.base import Json
from atelier.engine.config.metric import FOLDER, MetricLine, is_segment, segment_name
from atelier.engine.config.run_file import SegmentAddress
from atelier.engine.io.storage import is_local, join, names, writing

PROGRESS_EVERY = 0.5  # seconds
SEAL_AFTER = 10.0  # longest wait of a line, seconds
LOOK = "eval/"


class ProgressReport:
    """Progress over the whole run file: `total` steps over all its trainings."""

    def __init__(self, *, total: int, is_first: bool) -> None:
        self.total, self.is_first = total, is_first
        self.before = 0  # steps of earlier trainings
        self._spoke = -PROGRESS_EVERY
        self._rate = 0.0

    def say(self, **words: Json) -> None:
        """Print one JSON object on stdout and flush. A closed stdout does not stop the training; the
        supervisor's pipe does.
        """
        if not self.is_first:
            return
        try:
            print(json.dumps(words), flush=True)
        except (BrokenPipeError, ValueError):
            self.is_first = False
        except OSError:
            return  # full disk: the text stays in the buffer until there is room

    def progress(self, step: int, step_s: float, losses: dict[str, float], *, is_last: bool) -> None:
        """Report a step, at most twice per second; `rate` in steps per second, smoothed."""
        rate = 1.0 / max(step_s, 1e-9)
        self._rate = rate if self._rate == 0.0 else 0.9 * self._rate + 0.1 * rate
        now = time.monotonic()
        if now - self._spoke < PROGRESS_EVERY and not is_last:
            return
        self._spoke = now
        loss = {role: round(value, 4) for role, value in losses.items()}
        self.say(
            progress=self.before + step, total=self.total, unit="steps", rate=round(self._rate, 3), loss=loss
        )


class MetricLog:
    """Writes one role's metric lines, each to the trajectory of its step."""

    def __init__(self, segments: Sequence[SegmentAddress], *, is_first: bool) -> None:
        self._segments = tuple(segments) if is_first else ()
        self._open: dict[str, Segments] = {}

    def add(self, line: MetricLine) -> None:
        for segment in self._segments:
            if segment.start < line.step <= segment.end:
                if segment.url not in self._open:
                    with suppress(OSError):  # lines stay buffered; the next checkpoint reports the error
                        self.flush()
                    self._open[segment.url] = Segments(segment.url, segment.attempt)
                self._open[segment.url].add(line)

    def flush(self) -> None:
        for segments in self._open.values():
            segments.flush()


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
