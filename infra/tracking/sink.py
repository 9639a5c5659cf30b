"""Write the curves of a flow run's trainings to a tracker, on its own thread, so that training continues
whatever the tracker does. MLflow tracks more than curves (mlflow_tracker.py). Other trackers are the files of
sinks/, named like packages and extras of pyproject.toml.
"""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from atelier.engine.config.base import Json
from atelier.infra.report.lineage import find_trajectory
from atelier.infra.run.run_tracker import TaskHandle
from atelier.infra.store.store import Store
from atelier.infra.tracking.about import RunInfo, ended, flat
from atelier.infra.tracking.curve import FIRST, Curve, CurveRow
from atelier.infra.tracking.retry_worker import Connected, Worker

CLOSE_S = 30.0


@dataclass(frozen=True, kw_only=True)
class CurveInfo:
    """The curve of one trajectory. `role` is unique in a task, `fingerprint` everywhere."""

    fingerprint: str
    name: str
    role: str
    params: dict[str, Json]
    tags: dict[str, str]


class SinkCurve(Protocol):
    """A curve in a tracker. It is opened when the first missing point is added."""

    def add(self, rows: Sequence[CurveRow]) -> None:
        """Add the points that the tracker does not have; may be called again with the same rows."""

    def finish(self, status: str, last: CurveRow | None) -> None:
        """If the curve is open, add `last` and end it with FINISHED, FAILED or KILLED."""


class Sink(Connected, Protocol):
    """A tracker of curves that is open."""

    @property
    def label(self) -> str: ...

    def curve(self, about: CurveInfo) -> SinkCurve:
        """The curve of a trajectory, the same in every run."""
        ...

    def forget(self, fingerprint: str) -> None:
        """Remove the curve of a trajectory that restarts from step 0."""

    def places(self) -> list[str]:
        """Commands or addresses that show the curves, one a line."""
        ...


class CurveTracker(ABC):
    """One tracker of curves for one flow run."""

    claims = True  # it cannot detect repeated points: one process at a time writes a curve

    def __init__(self, store: Store, about: RunInfo) -> None:
        self.store, self.about = store, about
        self._worker: Worker | None = None
        self._followings: list[Following] = []
        self._writers: list[CurveWriter] = []

    @property
    def worker(self) -> Worker:
        """The thread; it imports the tracker with its first job."""
        if self._worker is None:
            self._worker = Worker(self.connect)
        return self._worker

    @abstractmethod
    def connect(self) -> Connected:
        """Import and open the tracker, on the thread."""

    @abstractmethod
    def curve(self, curve: Curve, task: TaskHandle | None) -> SinkCurve:
        """The curve in the tracker, on the thread."""

    def writer_of(self, curve: Curve, task: TaskHandle | None = None) -> "CurveWriter":
        self._writers.append(CurveWriter(self, curve, task))
        return self._writers[-1]

    def follow(self, curves: list[list[Curve]], task: TaskHandle | None = None) -> "Following":
        """Write the curves of a gang's trainings, every two seconds, until `stop`."""
        following = Following(self, curves, task)
        self._followings.append(following)
        return following

    def stop(self, status: str) -> None:
        """Stop following all curves."""
        for following in self._followings:
            following.stop(status)

    def finish(self, timeout_s: float) -> list[str]:
        """Write the rest, for at most `timeout_s`. Returns unwritten data as text."""
        problems = self._worker.close(timeout_s) if self._worker is not None else []
        for writer in self._writers:
            writer.curve.release(writer)
        return problems


class SinkTracker(CurveTracker):
    """A tracker of curves only: the file `name` of sinks/."""

    def __init__(self, name: str, store: Store, about: RunInfo) -> None:
        super().__init__(store, about)
        self.name = name
        self._sink: Sink | None = None

    def connect(self) -> Sink:
        module = importlib.import_module(f"atelier.infra.tracking.sinks.{self.name}")
        self._sink = module.open_sink(self.store, self.about)
        return self.sink

    @property
    def sink(self) -> Sink:
        assert self._sink is not None  # jobs run only after connect
        return self._sink

    def curve(self, curve: Curve, task: TaskHandle | None) -> SinkCurve:
        followed = curve.followed
        trajectory_record = find_trajectory(self.store, curve.fingerprint)
        params = flat(followed.params) or flat(trajectory_record.identity if trajectory_record else {})
        tags = self.about.common() | {
            "atelier.command": self.about.command,
            "atelier.trajectory": curve.fingerprint,
            "atelier.role": followed.role,
            "atelier.teacher": followed.teacher,
            "atelier.url": curve.segments[-1].url,
        }
        about = CurveInfo(
            fingerprint=curve.fingerprint,
            name=curve.name,
            role=followed.role if curve.is_whole else f"{followed.role}-trunk-{curve.segments[-1].end}",
            params=params,
            tags={key: value for key, value in tags.items() if value},
        )
        return self.sink.curve(about)

    def finished(self, curve: Curve) -> None:
        """Write the missing part of the curve of a training that has ended."""
        writer = self.writer_of(curve)
        self.worker.put(f"the curve of {curve.followed.role}", lambda sink: writer.finish("FINISHED"))

    def forget(self, trajectory: str) -> None:
        self.worker.put("a training restarts", lambda sink: self.sink.forget(trajectory))

    def places(self) -> list[str]:
        """Commands or addresses that show the curves, one a line."""
        return self._sink.places() if self._sink is not None else []

    def close(self, status: str) -> list[str]:
        """Write the rest. Returns unwritten data as one line."""
        self.stop(status)
        problems = list(dict.fromkeys(self.finish(CLOSE_S)))
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        label = self._sink.label if self._sink else self.name
        return [f"not in {label}: {problems[0]}{more}"] if problems else []


class Following:
    """Writes the curves of one gang's trainings to one tracker."""

    def __init__(self, tracker: CurveTracker, curves: list[list[Curve]], task: TaskHandle | None) -> None:
        self._worker, self._chains = tracker.worker, curves
        self._writers = [[tracker.writer_of(curve, task) for curve in chain] for chain in curves]
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
        for chain, writers in zip(self._chains, self._writers, strict=True):
            for place, writer in enumerate(writers):
                self._worker.put(
                    f"the curve of {writer.curve.followed.role}",
                    lambda sink, chain=chain, place=place, writer=writer: writer.finish(
                        # a trunk that training has passed is finished, however its branch ended
                        "FINISHED" if any(later.has_own() for later in chain[place + 1 :]) else status
                    ),
                )


class CurveWriter:
    """Adds the rows of one curve to one tracker, unless another process writes it there."""

    def __init__(self, tracker: CurveTracker, curve: Curve, task: TaskHandle | None) -> None:
        self._tracker, self.curve, self._task = tracker, curve, task
        self._there: SinkCurve | None = None
        self._next = FIRST  # after the last row that was added
        if tracker.claims:
            curve.begin(self)

    def poll(self) -> None:
        """Add the metric lines sealed since the last call."""
        if self._may_draw():
            self.curve.poll()
            self._add()

    def finish(self, status: str) -> None:
        """Add the rest, with the last step in full, and end the curve."""
        if self._may_draw():
            self.curve.finish()
            self._add()
            self._open().finish(ended(status), self.curve.effective)
            self.curve.release(self)

    def _may_draw(self) -> bool:
        return not self._tracker.claims or (self.curve.has_own() and self.curve.claim())

    def _open(self) -> SinkCurve:
        if self._there is None:
            self._there = self._tracker.curve(self.curve, self._task)
        return self._there

    def _add(self) -> None:
        rows, end = self.curve.since(self._next)
        if rows:
            self._open().add(rows)
        self._next = end
