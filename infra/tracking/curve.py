"""Select points of a curve from a trajectory's metric segments: each step once, dense at the beginning and
thinned later.
"""

from collections.abc import Iterable

from atelier.engine.config.metric import FOLDER, CurveLine, is_segment, merge
from atelier.engine.config.run_file import SegmentAddress
from atelier.engine.io.storage import join, names, read_text

DENSE = 200
PER_OCTAVE = 100
# key of a line's timing -> MLflow system metric
MEASURED = (
    "cpu_cores",
    "resident_gb",
    "gpu_percent",
    "gpu_memory_gb",
)  # by process_stats.py
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


def is_kept(count: int) -> bool:
    """Whether the `count`-th step of a curve is drawn: each of the first 200, then 100 for every doubling
    (1,000 points by step 51,200).

    It depends on the step alone, so that a resumed or extended training goes on with the same curve.
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
        time = timing.get("time", now)
        whole = step == last or is_kept(step - start)
        always = (ALWAYS, "link/") if "link_round" in timing or "link_codec" in timing else (ALWAYS,)
        values = {**line.get("values", {}), "tokens": line.get("tokens")}
        values |= {name: timing[key] for key, name in SYSTEM.items() if key in timing}
        for key, value in values.items():
            if (whole or key.startswith(always)) and (key, step) not in sent and value is not None:
                result.append((key, float(value), step, time if time > 1e9 else now))
    return result
