"""Held-out losses of a point while it is trained, polled from the store: a sweep prunes points by them. Any
process with access to the store can read them, wherever the gang runs.
"""

import threading
from collections.abc import Callable
from types import TracebackType

from atelier.engine.config.run_file import SegmentAddress
from atelier.flows.run.sweep_point import SweepPoint
from atelier.infra.store.trajectory import segment_addresses
from atelier.infra.tracking.curve import SegmentReader
from atelier.tasks import train

POLL_S = 0.5
Look = Callable[[SweepPoint, int, float], bool]  # a step and its held-out loss; False = stop it


def curve_of(point: SweepPoint, name: str) -> tuple[SegmentAddress, ...]:
    """The segments of the trajectory of the role or model `name` ('' = the last one trained); () for none."""
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


class LossWatch:
    """Calls `look` for every held-out loss of a point once, in order; `is_hopeless` when it returned False
    before the training's last step: a finished training is not stopped.
    """

    def __init__(self, point: SweepPoint, name: str, look: Look) -> None:
        self._point, self._look = point, look
        segments = curve_of(point, name)
        self._last = max((segment.end for segment in segments), default=0)
        self._reader = SegmentReader(segments)
        self._told: set[int] = set()
        self.is_hopeless = False

    def go_on(self) -> bool:
        """Pass new losses to `look`; False once the point is to be pruned."""
        self._reader.read()
        for step, loss in sorted(self._reader.eval_loss.items()):
            if step not in self._told and not self.is_hopeless:
                self._told.add(step)
                self.is_hopeless = not self._look(self._point, step, loss) and step < self._last
        return not self.is_hopeless


class LossWatchThread:
    """Polls beside a run of this process and sets `stop` when the point is to be pruned."""

    def __init__(self, looking: LossWatch, stop: threading.Event) -> None:
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
            self._stop.set()  # the point could no longer be pruned
