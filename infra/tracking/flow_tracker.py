"""MLflow tracker with a flow's interface: nodes, roles and their segments, records."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Unpack

from atelier.engine.config.base import flatten
from atelier.engine.config.document import section_of
from atelier.engine.config.error import StoppedError
from atelier.engine.config.record import Record
from atelier.engine.config.trajectory import Segment
from atelier.infra.dag import Node
from atelier.infra.run.run_tracker import TaskHandle
from atelier.infra.store.run_manifest import given
from atelier.infra.store.store import Store
from atelier.infra.store.trajectory import segment_addresses
from atelier.infra.tracking.about import Followed, RunAbout
from atelier.infra.tracking.address import tracking_address
from atelier.infra.tracking.follower import Curve
from atelier.infra.tracking.tracker import Tracker

STATUS = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}


class FlowTracker:
    """One flow run and its tasks, trajectories and models in MLflow."""

    def __init__(self, uri: str, store: Store, **about: Unpack[RunAbout]) -> None:
        self.store = store
        self.tracker = Tracker(tracking_address(uri, store), store, **about)
        self._handles: dict[str, TaskHandle] = {}
        self._makers: dict[str, TaskHandle] = {}  # by the fingerprint of their product
        self._flow_run = ""

    places: tuple[str, ...] = ()

    @property
    def urls(self) -> dict[str, str]:
        return self.tracker.urls()

    def link(self, **links: str) -> None:
        """Add links to other pages about this run, as tags."""
        self.tracker.tag({f"atelier.{key}": value for key, value in links.items()})

    def start_task(self, node: Node, is_reused: bool) -> TaskHandle | None:
        if is_reused:
            return None
        handle = self._handles[node.name] = self.tracker.start_task(node.name, node.task)
        self._makers |= {product.fingerprint: handle for product in node.products.values()}
        return handle

    def end_task(self, handle: TaskHandle | None, status: str) -> None:
        if handle is not None:
            self.tracker.end_task(handle, status)

    @contextmanager
    def following(
        self, node: Node, roles: Mapping[str, list[Segment]], curves: list[list[Curve]] | None = None
    ) -> Iterator[None]:
        """Write the curves of the roles' trajectories while the block runs; their runs end with it.
        `curves`: theirs, where other trackers write them as well.
        """
        followed = [followed_of(self.store, node, role, segments) for role, segments in roles.items()]
        following = self.tracker.follow(self._handles.get(node.name), followed, curves)
        try:
            yield
        except BaseException as error:
            following.stop("KILLED" if isinstance(error, StoppedError) else "FAILED")
            raise
        following.stop()

    def begin_again(self, trajectories: list[str]) -> None:
        for fingerprint in trajectories:
            self.tracker.forget(fingerprint)

    def record(self, record: Record) -> None:
        self.tracker.record(record, self._makers.get(record.fingerprint))

    def register(self, name: str, record: Record, aliases: list[str]) -> str:
        return self.tracker.register(record, name=name, aliases=aliases)

    def register_later(self, name: str, record: Record, aliases: list[str]) -> None:
        self.tracker.register_later(record, name=name, aliases=aliases)

    def report(self, record: Record, markdown: str, paths: list[str]) -> None:
        self.tracker.report(record, markdown, paths)

    def close(self, status: str) -> list[str]:
        return [f"not in MLflow yet: {text}" for text in self.tracker.close(STATUS[status])]


def followed_of(store: Store, node: Node, role: str, segments: list[Segment]) -> Followed:
    """The training of a role of a node, to track."""
    product = node.products[role]
    roles = section_of(node.config.get("roles"))
    teacher = str(section_of(roles.get(role)).get("teacher", ""))
    # without the role in their names, so that MLflow compares two roles key by key
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
