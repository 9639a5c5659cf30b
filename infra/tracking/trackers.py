"""The trackers of a flow run, with a flow's interface: nodes, roles and their segments, records. Only MLflow
has tasks, models and lineage; the others have curves.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from atelier.engine.config.base import flatten
from atelier.engine.config.document import section_of
from atelier.engine.config.error import StoppedError
from atelier.engine.config.record import Record
from atelier.engine.config.trajectory import Segment
from atelier.infra.dag import Node
from atelier.infra.report.lineage import trajectory_segments
from atelier.infra.run.run_tracker import RunTracker, TaskHandle
from atelier.infra.store.run_manifest import given
from atelier.infra.store.store import Store
from atelier.infra.store.trajectory import segment_addresses
from atelier.infra.tracking.about import Followed, RunInfo, ended
from atelier.infra.tracking.curve import Curve, curves_of
from atelier.infra.tracking.mlflow_tracker import MlflowTracker
from atelier.infra.tracking.sink import SinkTracker


class Trackers(RunTracker):
    """MLflow's tracker, if any, and the trackers `names` of infra/tracking/sinks. The metric files of a gang
    are read once, and every tracker gets the same points.
    """

    def __init__(
        self, mlflow: MlflowTracker | None, names: Sequence[str], store: Store, about: RunInfo
    ) -> None:
        self.store, self.mlflow = store, mlflow
        self.others = [SinkTracker(name, store, about) for name in names]
        self._handles: dict[str, TaskHandle] = {}
        self._makers: dict[str, TaskHandle] = {}  # by the fingerprint of their product
        self._followed: set[str] = set()

    @property
    def urls(self) -> Mapping[str, str]:
        return self.mlflow.urls() if self.mlflow else {}

    @property
    def places(self) -> list[str]:
        return [place for tracker in self.others for place in tracker.places()]

    def link(self, **links: str) -> None:
        """Add links to other pages about this run, as tags."""
        if self.mlflow:
            self.mlflow.tag({f"atelier.{key}": value for key, value in links.items()})

    def start_task(self, node: Node, is_reused: bool) -> TaskHandle | None:
        if is_reused or self.mlflow is None:
            return None
        handle = self._handles[node.name] = self.mlflow.start_task(node.name, node.task)
        self._makers |= {product.fingerprint: handle for product in node.products.values()}
        return handle

    def end_task(self, handle: TaskHandle | None, status: str) -> None:
        if handle is not None and self.mlflow:
            self.mlflow.end_task(handle, status)

    @contextmanager
    def following(self, node: Node, roles: Mapping[str, list[Segment]]) -> Iterator[None]:
        """Write the curves of the roles' trajectories during the block; they end with it."""
        followed = [followed_of(self.store, node, role, segments) for role, segments in roles.items()]
        curves = curves_of(followed, is_shared=bool(self.others))
        self._followed |= {curve.fingerprint for chain in curves for curve in chain}
        trackers = [*([self.mlflow] if self.mlflow else []), *self.others]
        followings = [tracker.follow(curves, self._handles.get(node.name)) for tracker in trackers]
        status = "FINISHED"
        try:
            yield
        except BaseException as error:
            status = "KILLED" if isinstance(error, StoppedError) else "FAILED"
            raise
        finally:
            for following in followings:
                following.stop(status)

    def begin_again(self, trajectories: list[str]) -> None:
        for tracker in [*([self.mlflow] if self.mlflow else []), *self.others]:
            for fingerprint in trajectories:
                tracker.forget(fingerprint)

    def record(self, record: Record) -> None:
        if self.mlflow:
            self.mlflow.record(record, self._makers.get(record.fingerprint))
        trajectory = record.parents.get("trajectory", "")
        if not self.others or record.kind != "model" or not trajectory or trajectory in self._followed:
            return
        self._followed.add(trajectory)
        segments = trajectory_segments(self.store, trajectory, record.summary.get("step", 0))
        role = str(record.summary.get("role", record.name))
        followed = Followed(segments=segments, role=role, name=record.name)
        curve = Curve(followed, len(segments) - 1, is_shared=True)
        for tracker in self.others:
            tracker.finished(curve)

    def register(self, name: str, record: Record, aliases: list[str]) -> str:
        return self.mlflow.register(record, name=name, aliases=aliases) if self.mlflow else ""

    def register_later(self, name: str, record: Record, aliases: list[str]) -> None:
        if self.mlflow:
            self.mlflow.register_later(record, name=name, aliases=aliases)

    def report(self, record: Record, markdown: str, paths: list[str]) -> None:
        if self.mlflow:
            self.mlflow.report(record, markdown, paths)

    def close(self, status: str) -> list[str]:
        late = self.mlflow.close(ended(status)) if self.mlflow else []
        return [
            *(f"not in MLflow yet: {text}" for text in late),
            *(text for tracker in self.others for text in tracker.close(ended(status))),
        ]


def followed_of(store: Store, node: Node, role: str, segments: list[Segment]) -> Followed:
    """The training of a role of a node, to track."""
    product = node.products[role]
    roles = section_of(node.config.get("roles"))
    teacher = str(section_of(roles.get(role)).get("teacher", ""))
    # without the role in the names, so that MLflow can compare two roles key by key
    params = {
        key.removeprefix(f"roles.{role}."): value
        for key, value in flatten(given(product)).items()
        if not key.startswith("horizon")
    } | {"role": role, "teacher": teacher, "train.steps": segments[-1].end}
    inputs = {name: fingerprint for name, (_, fingerprint) in node.inputs.items()}
    return Followed(
        segments=segment_addresses(store, segments),
        role=role,
        name=product.name,
        params=params,
        teacher=teacher,
        inputs=inputs,
    )
