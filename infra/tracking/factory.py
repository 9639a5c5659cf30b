"""The tracker that a configuration asks for: MLflow, or none. A flow talks to either in the same words."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from pydantic import Field

from atelier.engine.config.base import Spec
from atelier.engine.config.record import Record
from atelier.infra.dag import Node
from atelier.infra.store.store import Store


class TrackerSpec(Spec):
    """conf/tracker: where metrics, models and lineage go beside the store."""

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
    """Nothing is tracked beside the store."""

    urls: dict[str, str] = {}

    def link(self, **links: str) -> None:
        """Other pages about this run."""

    def start_task(self, node: Node, is_reused: bool) -> Any:
        return None

    def end_task(self, handle: Any, status: str) -> None:
        """A node ended with FINISHED, FAILED or KILLED."""

    @contextmanager
    def following(self, node: Node, roles: dict[str, Any]) -> Iterator[None]:
        """Send the metrics of trajectories on while they are trained."""
        yield

    def begin_again(self, trajectories: list[str]) -> None:
        """Their curves begin anew: what was trained under these fingerprints is gone."""

    def record(self, record: Record) -> None:
        """An artifact is finished."""

    def register(self, name: str, record: Record, aliases: list[str]) -> str:
        """Make a model findable under `name`; returns where."""
        return ""

    def register_later(self, name: str, record: Record, aliases: list[str]) -> None:
        """Make sure, without waiting, that a model whose registration is reused is findable under `name`."""

    def report(self, record: Record, markdown: str, paths: list[str]) -> None:
        """Show the report of a run on its page."""

    def close(self, status: str) -> list[str]:
        """The flow ended with finished, failed or stopped; returns what could not be written."""
        return []


def open_tracker(spec: TrackerSpec, store: Store, **about: Any) -> Any:
    """The tracker of one flow run; nothing of it runs on the training path."""
    if spec.kind == "none":
        return NoTracker()
    from atelier.infra.tracking.flow_tracker import FlowTracker

    return FlowTracker(spec.uri, store, **about)
