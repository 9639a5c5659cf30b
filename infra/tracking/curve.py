"""The curve of one trajectory: points selected from its metric files, each step once, dense at first and
thinned later. It is read once for all trackers.
"""

import json
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from atelier.engine.config.metric import FOLDER, CurveLine, effective, is_segment, merge, time_spent
from atelier.engine.config.run_file import SegmentAddress
from atelier.engine.io.storage import is_local, join, local_path, names, read_text
from atelier.infra.store.file_lock import file_lock
from atelier.infra.tracking.about import Followed
from atelier.infra.tracking.process_stats import ProcessStats

DENSE = 200
PER_OCTAVE = 100
# key of a line's timing -> MLflow system metric
MEASURED = (
    "cpu_cores",
    "resident_gb",
    "gpu_percent",
    "gpu_memory_gb",
)  # measured by process_stats.py
SYSTEM = {key: f"system/{key}" for key in ("tokens_per_s", "mfu", "memory_gb", *MEASURED)} | {
    "link_s": "link/seconds",  # between sites: engine/extensions/sites/link_meter.py
    "link_wait_s": "link/wait_seconds",
    "link_bytes": "link/bytes_sent",
    "link_received_bytes": "link/bytes_received",
    "link_codec": "link/codec",
    "link_round": "link/round",
    "link_delay_steps": "link/delay_steps",
    "link_ahead_steps": "link/ahead_steps",
}
ALWAYS = "eval/"
DRAWN = "drawn.jsonl"  # beside a trajectory's metrics: the selected rows
READ_S = 1.0  # between two looks for new metric files
Mark = tuple[int, int]  # a position between two rows of a curve
FIRST: Mark = (0, 0)


def is_kept(count: int) -> bool:
    """Whether the `count`-th step of a curve is drawn: each of the first 200, then 100 for every doubling
    (1,000 points by step 51,200).

    It depends on the step alone, so that a resumed or extended training continues the same curve.
    """
    if count <= DENSE:
        return True
    stride = 2 ** ((count - 1) // DENSE).bit_length()  # 2 up to 400, 4 up to 800, 8 up to 1600
    return count % stride == 0


def read_segments(url: str) -> list[tuple[str, str]]:
    """All metric segments of a trajectory: name and text."""
    folder = join(url, FOLDER)
    return [(join(folder, name), read_text(join(folder, name))) for name in names(folder) if is_segment(name)]


class SegmentReader:
    """Reads new metric lines of a chain of trajectory segments as their files are sealed; after a branch
    point only the branch's lines count.
    """

    def __init__(self, segments: tuple[SegmentAddress, ...]) -> None:
        self.segments = segments
        self.pending: list[CurveLine] = []
        self.eval_loss: dict[int, float] = {}
        self._seen: set[str] = set()

    def read(self) -> None:
        """Append the lines sealed since the last call to `pending`, in order, each step once."""
        for index, segment in enumerate(self.segments):
            for line in self._new(segment.url):
                before = index > 0 and line["step"] <= segment.start
                after = index + 1 < len(self.segments) and line["step"] > self.segments[index + 1].start
                if before or after:
                    continue
                self.pending.append(line)
                if (loss := line.get("values", {}).get("eval/loss")) is not None:
                    self.eval_loss[line["step"]] = loss

    def has_own(self) -> bool:
        """Whether the last segment has any metrics yet."""
        return bool(names(join(self.segments[-1].url, FOLDER)))

    def _new(self, url: str) -> list[CurveLine]:
        folder = join(url, FOLDER)
        found = [join(folder, name) for name in names(folder) if is_segment(name)]
        new = [place for place in found if place not in self._seen]
        lines = merge([(place, read_text(place)) for place in new])
        self._seen |= {*new}
        return lines


def points(
    lines: Iterable[CurveLine],
    sent: set[tuple[str, int]],
    *,
    start: int,
    now: float,
    last: int | None = None,
) -> list[tuple[str, float, int, float]]:
    """(metric, value, step, time) to log: not yet in `sent`, thinned; the line of step `last` in full."""
    result = []
    for line in lines:
        step = line["step"]
        timing = line.get("timing", {})
        when = timing.get("time", now)
        whole = step == last or is_kept(step - start)
        always = (ALWAYS, "link/") if "link_round" in timing or "link_codec" in timing else (ALWAYS,)
        values = {**line.get("values", {}), "tokens": line.get("tokens")}
        values |= {name: timing[key] for key, name in SYSTEM.items() if key in timing}
        for key, value in values.items():
            if (whole or key.startswith(always)) and (key, step) not in sent and value is not None:
                result.append((key, float(value), step, when if when > 1e9 else now))
    return result


@dataclass(frozen=True)
class CurveRow:
    """Metric values of one step; `time` in seconds since 1970."""

    step: int
    time: float
    values: dict[str, float]


class Curve:
    """The selected rows of one trajectory. It covers the role's whole training: a branch's curve starts with
    its trunk's. Threads of several trackers use it.

    With `is_shared` the rows are also kept in a file, so that every tracker gets the same values, even after
    a kill; one process at a time writes it.
    """

    def __init__(
        self,
        followed: Followed,
        index: int,
        *,
        stats: ProcessStats | None = None,
        lock: "threading.RLock | None" = None,
        is_shared: bool = False,
    ) -> None:
        self.followed = followed
        self.segments = followed.segments[: index + 1]
        self.reader = SegmentReader(self.segments)
        self.rows: list[CurveRow] = []
        self.effective: CurveRow | None = None  # share of its gangs' time spent training; known at the end
        self._drawn: set[tuple[str, int]] = set()
        self._newest: CurveLine | None = None
        self._stats, self._lock = stats, lock or threading.RLock()
        self._read_at = -READ_S
        self._is_new = self._is_ended = False
        url = self.segments[-1].url
        self._copy = local_path(join(url, DRAWN)) if is_shared and is_local(url) else None
        self._file: IO[str] | None = None
        self._writers: set[int] = set()  # trackers that have not finished
        self._order = 0  # increases when the rows are reordered

    @property
    def fingerprint(self) -> str:
        return self.segments[-1].fingerprint

    @property
    def is_whole(self) -> bool:
        """False for a trunk from which the role's training continues."""
        return len(self.segments) == len(self.followed.segments)

    @property
    def name(self) -> str:
        """The curve's name. The whole curve, the one to compare, has the plain name."""
        name = self.followed.name or self.followed.role
        return name if self.is_whole else f"{name} trunk to step {self.segments[-1].end}"

    def has_own(self) -> bool:
        """Whether the trajectory itself, besides its trunks, has any metrics yet."""
        return self.reader.has_own()

    def poll(self, *, is_wanted: bool = False) -> None:
        """Select rows from the lines sealed since the last call; before the trajectory has its own lines,
        only if `is_wanted`.
        """
        with self._lock:
            if time.monotonic() - self._read_at >= READ_S:
                self._read(is_wanted)

    def finish(self, *, is_wanted: bool = False) -> None:
        """Select the rest, and the last step in full."""
        with self._lock:
            self._read(is_wanted)
            if self._newest is not None:
                self._draw([self._newest], last=self._newest["step"])
            if self._is_new and not self._is_ended and self._newest is not None:
                self._is_ended = True
                share = effective(time_spent(read_segments(segment.url)) for segment in self.segments)
                if share is not None:
                    self.effective = CurveRow(self._newest["step"], time.time(), {"effective_time": share})
                    self._keep([self.effective])

    def since(self, mark: Mark) -> tuple[list[CurveRow], Mark]:
        """The rows after `mark`, and the mark after them; all rows if they were reordered."""
        with self._lock:
            order, start = mark
            return self.rows[start if order == self._order else 0 :], (self._order, len(self.rows))

    def _read(self, is_wanted: bool) -> None:
        if self.rows or is_wanted or self.has_own():
            self.reader.read()
            pending = self.reader.pending
            if pending:
                known = [self._newest] if self._newest else []
                self._newest = max([*known, *pending], key=lambda line: line["step"])
                self._measure(pending)
                self._draw(pending)
                pending.clear()
        self._read_at = time.monotonic()

    def _measure(self, pending: list[CurveLine]) -> None:
        """Add the gang's current process statistics to the newest selected step."""
        drawn = [line for line in pending if is_kept(line["step"] - self.segments[0].start)]
        if drawn and self._stats is not None:
            drawn[-1].setdefault("timing", {}).update(self._stats.read())

    def _draw(self, lines: Iterable[CurveLine], last: int | None = None) -> None:
        new: dict[int, CurveRow] = {}
        drawn = points(lines, self._drawn, start=self.segments[0].start, now=time.time(), last=last)
        for key, value, step, at in drawn:
            new.setdefault(step, CurveRow(step, at, {})).values[key] = value
        self._add(new.values())
        self._keep(new.values())
        self._is_new = self._is_new or bool(new)

    def _add(self, rows: Iterable[CurveRow]) -> None:
        for row in rows:
            self.rows.append(row)
            self._drawn |= {(key, row.step) for key in row.values}

    # selected rows on disk

    def begin(self, writer: object) -> None:
        """Register a tracker that will claim the curve and release it at its end."""
        self._writers.add(id(writer))

    def claim(self) -> bool:
        """Whether this process writes the curve for trackers that cannot detect a repeated point. Reads the
        rows selected before. A process that dies loses its claim.
        """
        with self._lock:
            if self._copy is None or self._file is not None:
                return True
            with suppress(OSError):  # the copy cannot be opened: no rows
                self._file = file_lock(self._copy)  # `release` closes it
                if self._file is not None:
                    before, self.rows, self._drawn = self.rows, [], set()
                    self._add(_rows_of(self._copy))
                    new = _without(self._drawn, before)
                    self._add(new)
                    self._keep(new)
                    self.rows.sort(key=lambda row: row.step)
                    self._order += 1
            return self._file is not None

    def release(self, writer: object) -> None:
        """Release the claim when its last tracker ends."""
        with self._lock:
            self._writers.discard(id(writer))
            if self._file is not None and not self._writers:
                self._file.close()
                self._file = None

    def _keep(self, rows: Iterable[CurveRow]) -> None:
        if self._file is not None:
            with suppress(OSError):  # a full disk: the rows are in the metric files as well
                self._file.write("".join(json.dumps(asdict(row)) + "\n" for row in rows))
                self._file.flush()


def _rows_of(path: Path) -> list[CurveRow]:
    """The rows of a file; partial lines are skipped, the metric files have their values."""
    rows = []
    for line in path.read_text().splitlines():
        with suppress(ValueError, TypeError):
            rows.append(CurveRow(**json.loads(line)))
    return rows


def _without(drawn: set[tuple[str, int]], rows: Iterable[CurveRow]) -> list[CurveRow]:
    left = [
        CurveRow(
            row.step, row.time, {key: v for key, v in row.values.items() if (key, row.step) not in drawn}
        )
        for row in rows
    ]
    return [row for row in left if row.values]


def curves_of(trajectories: Sequence[Followed], *, is_shared: bool = False) -> list[list[Curve]]:
    """The curves of a gang's trainings: for each role those of its trunks, then the whole one."""
    stats, lock = ProcessStats([followed.segments[-1].url for followed in trajectories]), threading.RLock()
    return [
        [
            Curve(followed, index, stats=stats, lock=lock, is_shared=is_shared)
            for index in range(len(followed.segments))
        ]
        for followed in trajectories
    ]
