"""Write the curves of a flow run's trainings to a tracker beside MLflow, on a thread of its own."""

from atelier.infra.report.lineage import find_trajectory
from atelier.infra.store.store import Store
from atelier.infra.tracking.about import RunInfo, ended, flat
from atelier.infra.tracking.follower import FIRST, Curve, ending
from atelier.infra.tracking.retry_worker import Worker
from atelier.infra.tracking.sink import CurveInfo, Sink, SinkCurve, open_sink

CLOSE_S = 30.0


class SinkTracker:
    """One tracker of curves for one flow run. Nothing is imported before there is a curve."""

    def __init__(self, name: str, store: Store, about: RunInfo) -> None:
        self.name, self._store, self._about = name, store, about
        self._sink: Sink | None = None
        self._worker: Worker | None = None
        self._followings: list[SinkFollowing] = []
        self._writers: list[SinkCurveWriter] = []

    @property
    def worker(self) -> Worker:
        if self._worker is None:
            self._worker = Worker(self._connect)
        return self._worker

    def _connect(self) -> Sink:
        self._sink = open_sink(self.name, self._store, self._about)
        return self._sink

    @property
    def sink(self) -> Sink:
        assert self._sink is not None  # jobs run only after _connect
        return self._sink

    def info(self, curve: Curve) -> CurveInfo:
        followed = curve.followed
        trajectory_record = find_trajectory(self._store, curve.fingerprint)
        params = flat(followed.params) or flat(trajectory_record.identity if trajectory_record else {})
        tags = self._about.common() | {
            "atelier.command": self._about.command,
            "atelier.trajectory": curve.fingerprint,
            "atelier.role": followed.role,
            "atelier.teacher": followed.teacher,
            "atelier.url": curve.segments[-1].url,
        }
        return CurveInfo(
            fingerprint=curve.fingerprint,
            name=curve.name,
            role=followed.role if curve.is_whole else f"{followed.role}-trunk-{curve.segments[-1].end}",
            params=params,
            tags={key: value for key, value in tags.items() if value},
        )

    def writer(self, curve: Curve) -> "SinkCurveWriter":
        self._writers.append(SinkCurveWriter(self, curve))
        return self._writers[-1]

    def follow(self, curves: list[list[Curve]]) -> "SinkFollowing":
        """Write the curves of a gang's trainings, every two seconds, until `stop`."""
        following = SinkFollowing(self, curves)
        self._followings.append(following)
        return following

    def finished(self, curve: Curve) -> None:
        """Write the curve of a training that has ended, as far as it is not there."""
        writer = self.writer(curve)
        self.worker.put(f"the curve of {curve.followed.role}", lambda sink: writer.finish("FINISHED"))

    def forget(self, trajectory: str) -> None:
        self.worker.put("a training begins again", lambda sink: self.sink.forget(trajectory))

    def places(self) -> list[str]:
        """How to look at what was written, a line each."""
        return self._sink.places() if self._sink is not None else []

    def close(self, status: str, timeout_s: float = CLOSE_S) -> list[str]:
        """Write the rest, for `timeout_s` at most; what was not written, as one line."""
        if self._worker is None:
            return []
        for following in self._followings:
            following.stop(status)
        problems = list(dict.fromkeys(self._worker.close(timeout_s)))
        for writer in self._writers:
            writer.curve.release(writer)
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        return (
            [f"not in {self._sink.label if self._sink else self.name}: {problems[0]}{more}"]
            if problems
            else []
        )


class SinkFollowing:
    """Writes the curves of one gang's trainings to one tracker."""

    def __init__(self, tracker: SinkTracker, curves: list[list[Curve]]) -> None:
        self._worker, self._chains = tracker.worker, curves
        self._writers = [[tracker.writer(curve) for curve in chain] for chain in curves]
        self._label = f"curves {id(self)}"
        self._is_stopped = False
        self._worker.regularly(self._label, lambda sink: self._poll())

    def _poll(self) -> None:
        for chain in self._writers:
            for writer in chain:
                writer.poll()

    def stop(self, status: str = "FINISHED") -> None:
        """After the gang has ended: queue the rest and the ends of the curves."""
        if self._is_stopped:
            return
        self._is_stopped = True
        self._worker.no_longer(self._label)
        for number, chain in enumerate(self._chains):
            for place, curve in enumerate(chain):
                self._worker.put(
                    f"the curve of {curve.followed.role}",
                    lambda sink, n=number, p=place: self._finish(n, p, status),
                )

    def _finish(self, number: int, place: int, status: str) -> None:
        self._writers[number][place].finish(ending(self._chains[number], place, status))


class SinkCurveWriter:
    """Adds the rows of one curve to one tracker, unless another process is drawing it."""

    def __init__(self, tracker: SinkTracker, curve: Curve) -> None:
        self._tracker, self.curve = tracker, curve
        self._there: SinkCurve | None = None
        self._next = FIRST
        curve.begin(self)

    def poll(self) -> None:
        if self.curve.has_own() and self.curve.claim():
            self.curve.poll()
            self._add()

    def _add(self) -> SinkCurve:
        if self._there is None:
            self._there = self._tracker.sink.curve(self._tracker.info(self.curve))
        rows, end = self.curve.since(self._next)
        if rows:
            self._there.add(rows)
        self._next = end
        return self._there

    def finish(self, status: str) -> None:
        """Add the rest, the last step in full, and end the curve."""
        if not (self.curve.has_own() and self.curve.claim()):
            return
        self.curve.finish()
        there = self._add()
        if there.is_open:
            if self.curve.effective is not None:
                there.add([self.curve.effective])
            there.finish(ended(status))
        self.curve.release(self)
