"""Hands the nodes of a flow to Prefect, each to the site that runs it; says how the run ended: the state of
every node, the first failure, and where the time went.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from atelier.engine.config.error import AtelierError, StoppedError
from atelier.infra.dag import Future, Node, Reference


class PrefectScheduler:
    """A scheduler that hands every node to Prefect, the futures of the nodes before it as its inputs: those
    named `here` (None = all), and before each the same node of other sites (`there`, by site).
    """

    def __init__(
        self,
        submit: Callable[[Node, list[Future]], Future],
        here: Collection[str] | None = None,
        there: Mapping[str, list[Node]] | None = None,
    ) -> None:
        self._submit, self._here = submit, here
        self._there = [node for nodes in (there or {}).values() for node in nodes]
        self.futures: list[Future] = []
        self.nodes: list[Node] = []

    def declare(self, node: Node, after: list[Reference]) -> Future | None:
        """Returns the future of the node here, or of the last site that runs it in its place."""
        waits = list({id(r.future): r.future for r in after if r.future is not None}.values())
        found = None
        for planned in (each for each in self._there if each.given_name == node.name):
            before = dict(zip((each.name for each in self.nodes), self.futures, strict=True))
            found = self._take(planned, [before[name] for name in planned.waits])
        if self._here is None or node.name in self._here:
            found = self._take(node, waits)
        return found

    def _take(self, node: Node, waits: list[Future]) -> Future:
        future = self._submit(node, waits)
        self.futures.append(future)
        self.nodes.append(node)
        return future


@dataclass
class RunOutcome:
    """How a run ended: per node its state, the first failure, and where the time went (seconds)."""

    run_id: str
    states: dict[str, str] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    errors: dict[str, Exception] = field(default_factory=dict)
    failure: Exception | None = None
    failed: str = ""
    untracked: list[str] = field(default_factory=list)
    places: list[str] = field(default_factory=list)  # where curves can be looked at, besides MLflow
    is_whole: bool = False  # every node has ended in a known state, whatever happens to Prefect
    prefect_s: float = 0.0
    total_s: float = 0.0

    @property
    def status(self) -> str:
        """finished, stopped or failed."""
        return "finished" if self.failure is None else "stopped" if self.is_stopped else "failed"

    @property
    def is_stopped(self) -> bool:
        return isinstance(self.failure, StoppedError)

    @property
    def reused(self) -> list[str]:
        return [name for name, state in self.states.items() if state == "reused"]


def wait_for(scheduler: PrefectScheduler, outcome: RunOutcome) -> None:
    """Wait for every future; the first real failure is the run's, a stop only where nothing failed."""
    for node, future in zip(scheduler.nodes, scheduler.futures, strict=True):
        future.wait()
        outcome.states.setdefault(node.name, "skipped")
    errors = [
        (node.name, outcome.errors[node.name]) for node in scheduler.nodes if node.name in outcome.errors
    ]
    errors.sort(key=lambda pair: isinstance(pair[1], StoppedError))
    if errors:
        outcome.failed, outcome.failure = errors[0]
        return
    for name, state in outcome.states.items():
        if state not in ("done", "reused"):
            outcome.failed, outcome.failure = name, AtelierError(f"ended as {state}, without a reason")
            return
