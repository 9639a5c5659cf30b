"""Run a flow here: its body inside a Prefect flow, each node a Prefect task, an embedded Prefect server
unless one is configured.
"""

import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.spec.error import AtelierError, StoppedError, of_system
from engine.storage import is_local, local_path
from flows.cli.bodies import body
from flows.cli.compose import Frozen
from flows.cli.page import show_plan, show_report
from flows.cli.plan import Plan
from flows.cli.screen import Screen
from flows.cli.server import Server, is_own, own_server
from flows.cli.work import work
from infra.dag import Node, Reference, scheduling, stop_scheduling
from infra.existing import looking_in
from infra.house import House
from infra.lease import Holder
from infra.machine import num_cores
from infra.manifests import described, write_manifest
from infra.slots import Slots
from infra.store import Store
from infra.tracking.choice import open_tracker

EMBEDDED = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "true",
    "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "true",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    "PREFECT_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_CLI_PROMPT": "false",
    "PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_LATE_RUNS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_FOREMAN_ENABLED": "false",
    "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false",
}


@dataclass
class Outcome:
    """How a run ended: per node its state, the first failure, and where the time went (seconds)."""

    run_id: str
    states: dict[str, str] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    errors: dict[str, Exception] = field(default_factory=dict)
    failure: Exception | None = None
    failed: str = ""
    untracked: list[str] = field(default_factory=list)
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


class Submitting:
    """A scheduler that hands every node to Prefect, the futures of the nodes before it as its inputs."""

    def __init__(self, submit: Callable[[Node, list[Any]], Any]) -> None:
        self._submit = submit
        self.futures: list[Any] = []
        self.nodes: list[Node] = []

    def declare(self, node: Node, after: list[Reference]) -> Any:
        waits = list({id(r.future): r.future for r in after if r.future is not None}.values())
        future = self._submit(node, waits)
        self.futures.append(future)
        self.nodes.append(node)
        return future


def embed(root: str) -> Server | None:
    """Settings and server of this process, before Prefect is imported; None when the user configured one."""
    for key, value in EMBEDDED.items():
        os.environ.setdefault(key, value)
    if "PREFECT_HOME" not in os.environ and is_local(root):
        os.environ["PREFECT_HOME"] = str(local_path(root) / "prefect")
    home = Path(os.environ.get("PREFECT_HOME", Path.home() / ".prefect"))
    if not is_own(os.environ.get("PREFECT_API_URL", "")) or (home / "profiles.toml").exists():
        return None
    server = own_server(home)
    os.environ["PREFECT_API_URL"] = server.url
    return server


def run_flow(
    frozen: Frozen, plan: Plan, store: Store, command: str, screen: Screen, sweep: str = ""
) -> Outcome:
    """Run the flow to its end; failures are in the outcome. Ctrl-C and SIGTERM stop gangs at a checkpoint."""
    started = time.monotonic()
    outcome = Outcome(run_id=f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:6]}", nodes=plan.nodes)
    house = _house(frozen, store, command, outcome.run_id, screen, sweep)
    manifest = {
        "id": outcome.run_id,
        "flow": frozen.flow,
        "command": command,
        "overrides": list(frozen.overrides),
        "sweep": sweep,
        "config": frozen.document,
        "started": time.time(),
        "status": "running",
        "holder": vars(Holder.me(command)),
        "tasks": [row for node in plan.nodes for row in described(node)],
    }
    write_manifest(store, manifest)
    with _stopping(house.stop):
        try:
            _in_prefect(frozen, plan, house, outcome, started)
        except StoppedError as error:
            outcome.failure = outcome.failure or error
        except KeyboardInterrupt:
            outcome.failure = StoppedError("stopped")
        except Exception as error:
            outcome.failure = outcome.failure or error
            write_manifest(store, manifest | _ending(outcome, house))
            raise
    try:
        write_manifest(store, manifest | _ending(outcome, house))
    except OSError as error:
        outcome.failure = outcome.failure or of_system(error)
    outcome.untracked = house.tracker.close(outcome.status)
    outcome.total_s = time.monotonic() - started
    return outcome


def _house(frozen: Frozen, store: Store, command: str, run_id: str, screen: Screen, sweep: str) -> House:
    tracker = open_tracker(
        frozen.tracker,
        store,
        flow=frozen.flow,
        command=command,
        run_id=run_id,
        config=frozen.document,
        sweep=sweep,
    )
    return House(
        store=store,
        slots=Slots(num_cores() if frozen.pool.slots == "auto" else frozen.pool.slots),
        scratch=_scratch(store, run_id),
        run_id=run_id,
        flow=frozen.flow,
        command=command,
        listener=screen.hear,
        tracker=tracker,
    )


def _ending(outcome: Outcome, house: House) -> dict[str, Any]:
    return {"ended": time.time(), "status": outcome.status, "states": outcome.states, "links": house.links}


def _scratch(store: Store, run_id: str) -> Path:
    base = local_path(store.root) if is_local(store.root) else Path.home() / ".cache" / "atelier"
    scratch = base / "scratch" / run_id
    scratch.mkdir(parents=True, exist_ok=True, mode=0o700)
    return scratch


@contextmanager
def _stopping(stop: threading.Event) -> Iterator[None]:
    """SIGINT and SIGTERM ask all gangs to checkpoint; a second one ends this process (the guards then end
    theirs). May be nested: Prefect takes SIGTERM for itself while a flow runs.
    """

    def on_signal(number: int, frame: object) -> None:
        if stop.is_set():
            os._exit(1)
        stop.set()
        print("\nstopping: running tasks write a checkpoint (again to leave at once)", file=sys.stderr)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _in_prefect(frozen: Frozen, plan: Plan, house: House, outcome: Outcome, started: float) -> None:
    server = embed(house.store.root)
    import prefect  # 1.5 s: plans, help and errors do without
    from prefect.task_runners import ThreadPoolTaskRunner

    @prefect.task(name="work", persist_result=False)
    def node_task(node: dict[str, Any], after: list[Any]) -> dict[str, Any]:
        return work(Node.model_validate(node), house, outcome.states, outcome.errors)

    def submit(node: Node, waits: list[Any]) -> Any:
        named = node_task.with_options(name=node.task, task_run_name=node.name)
        return named.submit(node.model_dump(mode="json"), waits)

    runner: Any = ThreadPoolTaskRunner(max_workers=16)

    @prefect.flow(
        name=frozen.flow, flow_run_name=outcome.run_id, task_runner=runner, validate_parameters=False
    )
    def dag(config: dict[str, Any]) -> None:
        from prefect.runtime import flow_run  # known only inside a run

        outcome.prefect_s = time.monotonic() - started
        house.links["flow_run"] = str(flow_run.id)
        house.tracker.link(flow_run=str(flow_run.id))
        show_plan(plan)
        scheduler = Submitting(submit)
        looking_in(house.store)
        with _stopping(house.stop):
            token = scheduling(scheduler)
            try:
                body(frozen.flow)(**frozen.call())
            finally:
                stop_scheduling(token)
                _wait_for(scheduler, outcome)
        if outcome.failure is not None:
            raise outcome.failure
        show_report(outcome.nodes, house)

    try:
        if server is not None:
            server.wait()
        dag(frozen.document)
    except AtelierError as error:
        outcome.failure = outcome.failure or error


def _wait_for(scheduler: Submitting, outcome: Outcome) -> None:
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
            outcome.failed, outcome.failure = name, AtelierError(f"ended as {state}, without a word")
            return
