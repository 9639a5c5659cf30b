"""The tracker that a configuration asks for: MLflow, or none. A flow talks to either in the same words."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from engine.spec.base import nearest
from engine.spec.error import ConfigError
from engine.spec.record import Record
from infra.dag import Node
from infra.store import Store


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

    def record(self, record: Record) -> None:
        """An artifact is finished."""

    def register(self, name: str, record: Record, aliases: list[str]) -> str:
        """Make a model findable under `name`; returns where."""
        return ""

    def report(self, record: Record, markdown: str, paths: list[str]) -> None:
        """Show the report of a run on its page."""

    def close(self, status: str) -> list[str]:
        """The flow ended with finished, failed or stopped; returns what could not be written."""
        return []


def open_tracker(settings: dict[str, str], store: Store, **about: Any) -> Any:
    kind = settings.get("kind", "none")
    if kind == "none":
        return NoTracker()
    if kind == "mlflow":
        from infra.tracking_flow import (
            FlowTracker,
        )  # mlflow's modules: not for plans, help and trackerless runs

        return FlowTracker(settings.get("uri", ""), store, **about)
    near = nearest(kind, ["mlflow", "none"])
    raise ConfigError(
        "tracker.kind", f"no tracker {kind!r}", f"did you mean {near}?" if near else "there are: mlflow, none"
    )
