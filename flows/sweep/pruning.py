"""Poll the sweep's metric from the store while a point trains, to prune points. Any process with access to
the store can do this, wherever the training runs.
"""

import threading
from collections.abc import Callable
from types import TracebackType

from atelier.engine.config.direction import RECORDED
from atelier.engine.config.run_file import SegmentAddress
from atelier.flows.run.sweep_point import SweepPoint
from atelier.infra.store.trajectory import segment_addresses
from atelier.infra.tracking.curve import SegmentReader
from atelier.tasks import train

POLL_S = 0.5
Look = Callable[[SweepPoint, int, float], bool]  # a step and the metric's value; False = stop it


def curve_of(point: SweepPoint, name: str) -> tuple[SegmentAddress, ...]:
    """The trajectory segments of the role or model `name` ('' = the last one trained), or ()."""
    found: tuple[SegmentAddress, ...] = ()
    for node in point.nodes:
        if node.task != "train":
            continue
        segments = train.unpack(node)[2]
        for role, product in node.products.items():
            if name in ("", role, product.name):
                found = segment_addresses(point.store, segments[role])
                if name:
                    return found
    return found


def unrecorded(point: SweepPoint, metric: str) -> str:
    """Why the metric `<model>.<key>` has no values during training; '' if it has."""
    name, _, word = metric.rpartition(".")
    if word not in RECORDED:
        return f"training does not record {metric}"
    return "" if curve_of(point, name) else f"no training of this sweep records {metric}"


def recorded(point: SweepPoint, metric: str) -> dict[int, float]:
    """The values of the metric `<model>.<key>` in a point's curve so far, by step."""
    found: dict[int, float] = {}

    def note(_: SweepPoint, step: int, value: float) -> bool:
        found[step] = value
        return True

    CurveWatch(point, metric, note).go_on()
    return found


class CurveWatch:
    """Calls `look` once for every value of the metric `<model>.<key>` in a point's curve, in order.
    `is_hopeless`: it returned False before the last step: a finished training is not stopped.
    """

    def __init__(self, point: SweepPoint, metric: str, look: Look) -> None:
        self._point, self._look = point, look
        name, _, word = metric.rpartition(".")
        self._metric = RECORDED.get(word, "")
        segments = curve_of(point, name) if self._metric else ()
        self._last = max((segment.end for segment in segments), default=0)
        self._reader = SegmentReader(segments)
        self._told: set[int] = set()
        self.is_hopeless = False

    def go_on(self) -> bool:
        """Pass new values to `look`. Returns False if the point is to be pruned."""
        self._reader.read()
        lines, self._reader.pending = self._reader.pending, []
        for line in sorted(lines, key=lambda line: line["step"]):
            step, value = line["step"], line.get("values", {}).get(self._metric)
            if value is not None and step not in self._told and not self.is_hopeless:
                self._told.add(step)
                self.is_hopeless = not self._look(self._point, step, value) and step < self._last
        return not self.is_hopeless


class CurveWatchThread:
    """Polls beside a run of this process and sets `stop` if the point is to be pruned."""

    def __init__(self, looking: CurveWatch, stop: threading.Event) -> None:
        self._looking, self._stop = looking, stop
        self._ended = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._ended.wait(POLL_S):
                if not self._looking.go_on():
                    self._stop.set()
                    return
        except Exception as error:
            self._error = error
            self._stop.set()  # the point can no longer be pruned
