"""Output of a gang, by rank 0: progress as JSON lines on stdout, and the metric segments of its trajectories.
Torch-free.
"""

import json
import time
from collections.abc import Sequence
from contextlib import suppress

from atelier.engine.config.base import Json
from atelier.engine.config.metric import MetricLine
from atelier.engine.config.run_file import SegmentAddress
from atelier.engine.io.metric_writer import Segments

PROGRESS_EVERY = 0.5  # seconds


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
