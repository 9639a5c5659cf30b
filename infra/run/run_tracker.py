"""Interface between a run and its trackers, which show tasks, curves and models."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from atelier.engine.config.record import Record
from atelier.engine.config.trajectory import Segment
from atelier.infra.dag import Node


class TaskHandle:
    """A task in the tracker; `run` is '' until the tracker has started its run there."""

    def __init__(self, name: str, task: str) -> None:
        self.name, self.task, self.run = name, task, ""


class RunTracker:
    """Interface of the trackers (infra/tracking) for tasks, curves and models of a run; this base class
    ignores everything.
    """

    @property
    def urls(self) -> Mapping[str, str]:
        """'flow', 'compare' -> page; {} while unknown."""
        return {}

    @property
    def places(self) -> Sequence[str]:
        """Commands or addresses that show the curves, one for each tracker."""
        return ()

    def link(self, **links: str) -> None:
        """Add links to other pages about this run."""

    def start_task(self, node: Node, is_reused: bool) -> TaskHandle | None: ...

    def end_task(self, handle: TaskHandle | None, status: str) -> None:
        """Record that a node ended with FINISHED, FAILED or KILLED."""

    @contextmanager
    def following(self, node: Node, roles: Mapping[str, list[Segment]]) -> Iterator[None]:
        """Send the metrics of the roles' trajectories during the block; the curves end with it."""
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
        """End the flow's run with finished, failed or stopped; returns unwritten data as text."""
        return []
