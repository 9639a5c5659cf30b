"""Create the tracker that the configuration selects: MLflow or none, with the same interface."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from pydantic import Field

from atelier.engine.config.base import Spec
from atelier.engine.config.record import Record
from atelier.infra.dag import Node
from atelier.infra.store.store import Store


class TrackerSpec(Spec):
    """conf/tracker: where metrics, models and lineage go in addition to the store."""

    kind: Literal["mlflow", "none"] = Field(default="none", description="mlflow or none")
    uri: str = Field(
        default="",
        pattern=r"^$|^(https?|sqlite|postgresql|mysql|mssql)(\+\w+)?://[^@]*$",  # a record keeps no password
        description=(
            "an http(s):// server or a database such as sqlite:///file; empty = $MLFLOW_TRACKING_URI, else a"
            " database in the store's folder"
        ),
    )


class NoTracker:
    """Tracker that does nothing."""

    urls: dict[str, str] = {}

    def link(self, **links: str) -> None:
        """Add links to other pages about this run."""

    def start_task(self, node: Node, is_reused: bool) -> Any:
        return None

    def end_task(self, handle: Any, status: str) -> None:
        """Record that a node ended with FINISHED, FAILED or KILLED."""

    @contextmanager
    def following(self, node: Node, roles: dict[str, Any]) -> Iterator[None]:
        """Send the metrics of the roles' trajectories while the block runs."""
        yield

    def begin_again(self, trajectories: list[str]) -> None:
        """Delete the runs of trajectories that restart from step 0."""

    def record(self, record: Record) -> None:
        """Record a finished artifact."""

    def register(self, name: str, record: Record, aliases: list[str]) -> str:
        """Register a model under `name`; returns its address."""
        return ""

    def register_later(self, name: str, record: Record, aliases: list[str]) -> None:
        """Ensure, without waiting, that a model whose registration is reused is registered under `name`."""

    def report(self, record: Record, markdown: str, paths: list[str]) -> None:
        """Show the report of a run on its page."""

    def close(self, status: str) -> list[str]:
        """End the flow's run with finished, failed or stopped; returns what could not be written."""
        return []


def open_tracker(spec: TrackerSpec, store: Store, **about: Any) -> Any:
    """Open the tracker of one flow run; it never runs on the training path."""
    if spec.kind == "none":
        return NoTracker()
    from atelier.infra.tracking.flow_tracker import FlowTracker

    return FlowTracker(spec.uri, store, **about)
