"""How a run ended: the state of every node, the first failure, and where the time went."""

from dataclasses import dataclass, field

from atelier.engine.config.error import AtelierError, StoppedError
from atelier.flows.run.scheduler import PrefectScheduler
from atelier.infra.dag import Node


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
