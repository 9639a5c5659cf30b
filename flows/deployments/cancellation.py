"""Keep a flow process and its Prefect run consistent when the worker or the server fails.

A worker passes cancellations to its flow processes. The server knows a process only by its heartbeats. Either
may be unavailable, so the process polls its run itself.
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.events import Event, Resource
from prefect.runtime import flow_run
from prefect.states import Running

from atelier.flows.run.cancel_request import regularly
from atelier.infra.stack import prefect_api
from atelier.infra.stack.deployments import DEAD_AFTER_S, HEARTBEAT, is_silence

POLL_S = 5.0
ORPHAN_POLL_S = 1.0
WORKERS_TURN_S = 10.0  # in this time a worker would pass a cancellation on as a signal
RECLAIM_S = 4 * POLL_S  # in this time a process reclaims a run that ended only for missing heartbeats


@contextmanager
def present(stop: threading.Event) -> Iterator[None]:
    """During the block: set `stop` on a cancellation that no worker passes on; mark a run as running again
    that was marked crashed only for missing heartbeats (the server had been unavailable).
    """
    run_id = str(flow_run.id)
    cancelled_at = away_at = 0.0

    def check() -> None:
        nonlocal cancelled_at, away_at
        run = prefect_api.read_run(run_id)
        if run is None or run.state is None:
            away_at = time.monotonic()
            return
        if away_at and time.monotonic() - away_at < DEAD_AFTER_S:
            # Prefect sends its late heartbeats slowly, the oldest first
            _say_alive(run)
        if run.state.is_cancelling() or run.state.is_cancelled():
            cancelled_at = cancelled_at or time.monotonic()
            if time.monotonic() - cancelled_at >= WORKERS_TURN_S:
                stop.set()
        elif is_silence(run.state):
            _reclaim(run)

    with regularly(POLL_S, check):
        yield


@contextmanager
def watching_worker(stop: threading.Event, orphaned: threading.Event) -> Iterator[None]:
    """During the block: set both events when the worker that started this process is gone, because then
    nothing can signal the process.
    """
    worker = os.getppid()

    def check() -> None:
        if os.getppid() != worker:
            orphaned.set()
            stop.set()

    with regularly(ORPHAN_POLL_S, check):
        yield


def end_of(run: FlowRun | None, silent_since: dict[str, float]) -> State | None:
    """The final state of the run, or None. A run that ended only for missing heartbeats counts after
    RECLAIM_S, because its process may reclaim it.
    """
    if run is None or run.state is None:
        return None
    if not is_silence(run.state):
        silent_since.pop(str(run.id), None)
        return run.state if run.state.is_final() else None
    since = silent_since.setdefault(str(run.id), time.monotonic())
    return run.state if time.monotonic() - since > RECLAIM_S else None


def _say_alive(run: FlowRun) -> None:
    resource = Resource.model_validate({"prefect.resource.id": f"prefect.flow-run.{run.id}"})
    heartbeat = Event(event=HEARTBEAT, resource=resource)
    with get_client(sync_client=True) as client:
        client.request("POST", "/events", json=[heartbeat.model_dump(mode="json")])


def _reclaim(run: FlowRun) -> None:
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(run.id, Running(message="its process was running all the time"), force=True)
