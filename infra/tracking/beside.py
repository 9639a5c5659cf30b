"""Other trackers of curves beside MLflow, or instead of it, with a flow's interface. MLflow alone has tasks,
models and lineage.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext

from atelier.engine.config.error import StoppedError
from atelier.engine.config.record import Record
from atelier.engine.config.trajectory import Segment
from atelier.infra.dag import Node
from atelier.infra.report.lineage import trajectory_segments
from atelier.infra.run.run_tracker import NoTracker, RunTracker, TaskHandle
from atelier.infra.store.store import Store
from atelier.infra.tracking.about import Followed, RunInfo
from atelier.infra.tracking.flow_tracker import STATUS, FlowTracker, followed_of
from atelier.infra.tracking.follower import Curve, curves_of
from atelier.infra.tracking.sink_tracker import SinkTracker


class Beside:
    """MLflow's tracker, if any, and the trackers `names` of infra/tracking/sinks. The metric files of a gang
    are read once, and every tracker gets the same points.
    """

    def __init__(
        self, mlflow: FlowTracker | None, names: Sequence[str], store: Store, about: RunInfo
    ) -> None:
        self.store, self.mlflow = store, mlflow
        self.inner: RunTracker = mlflow or NoTracker()
        self.trackers = [SinkTracker(name, store, about) for name in names]
        self._followed: set[str] = set()

    @property
    def urls(self) -> Mapping[str, str]:
        return self.inner.urls

    @property
    def places(self) -> list[str]:
        return [place for tracker in self.trackers for place in tracker.places()]

    def link(self, **links: str) -> None:
        self.inner.link(**links)

    def start_task(self, node: Node, is_reused: bool) -> TaskHandle | None:
        return self.inner.start_task(node, is_reused)

    def end_task(self, handle: TaskHandle | None, status: str) -> None:
        self.inner.end_task(handle, status)

    @contextmanager
    def following(self, node: Node, roles: Mapping[str, list[Segment]]) -> Iterator[None]:
        """Write the curves of the roles' trajectories while the block runs; they end with it."""
        followed = [followed_of(self.store, node, role, segments) for role, segments in roles.items()]
        curves = curves_of(followed, is_shared=True)
        self._followed |= {curve.fingerprint for chain in curves for curve in chain}
        followings = [tracker.follow(curves) for tracker in self.trackers]
        status = "FINISHED"
        try:
            with self.mlflow.following(node, roles, curves) if self.mlflow else nullcontext():
                yield
        except BaseException as error:
            status = "KILLED" if isinstance(error, StoppedError) else "FAILED"
            raise
        finally:
            for following in followings:
                following.stop(status)

    def begin_again(self, trajectories: list[str]) -> None:
        self.inner.begin_again(trajectories)
        for tracker in self.trackers:
            for fingerprint in trajectories:
                tracker.forget(fingerprint)

    def record(self, record: Record) -> None:
        self.inner.record(record)
        trajectory = record.parents.get("trajectory", "")
        if record.kind != "model" or not trajectory or trajectory in self._followed:
            return
        self._followed.add(trajectory)
        segments = trajectory_segments(self.store, trajectory, record.summary.get("step", 0))
        role = str(record.summary.get("role", record.name))
        followed = Followed(segments=segments, role=role, name=record.name)
        curve = Curve(followed, len(segments) - 1, is_shared=True)
        for tracker in self.trackers:
            tracker.finished(curve)

    def register(self, name: str, record: Record, aliases: list[str]) -> str:
        return self.inner.register(name, record, aliases)

    def register_later(self, name: str, record: Record, aliases: list[str]) -> None:
        self.inner.register_later(name, record, aliases)

    def report(self, record: Record, markdown: str, paths: list[str]) -> None:
        self.inner.report(record, markdown, paths)

    def close(self, status: str) -> list[str]:
        late = self.inner.close(status)
        return late + [text for tracker in self.trackers for text in tracker.close(STATUS[status])]
