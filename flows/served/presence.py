"""A flow process and its Prefect run stay one, whatever happens to the worker between them and to the server.

A worker reads its flows' output and hears of their cancellation; the server hears of a process only by its
heartbeats. Any of them may be away, so the process looks at its run itself.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.runtime import flow_run
from prefect.states import Running

from infra.stack import api
from infra.stack.deploy import is_silence

POLL_S = 5.0
WORKERS_TURN_S = 10.0  # until then the worker, if there is one, passes a cancellation on as a signal
RECLAIM_S = 4 * POLL_S  # a run that silence alone has ended is its process's again within this time


@contextmanager
def present(stop: threading.Event) -> Iterator[None]:
    """While the block runs: a cancellation that no worker passes on sets `stop`; a run that was marked
    crashed for its silence alone (the server had been away) is marked as running again.
    """
    run_id, ended = str(flow_run.id), threading.Event()

    def look() -> None:
        cancelled_at = 0.0
        while not ended.wait(POLL_S):
            with suppress(Exception):  # whatever the server says: it is asked again
                run = api.read_run(run_id)
                if run is None or run.state is None:
                    continue
                if run.state.is_cancelling() or run.state.is_cancelled():
                    cancelled_at = cancelled_at or time.monotonic()
                    if time.monotonic() - cancelled_at >= WORKERS_TURN_S:
                        stop.set()
                elif is_silence(run.state) and not ended.is_set():
                    _reclaim(run)

    thread = threading.Thread(target=look, daemon=True, name="presence")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _reclaim(run: FlowRun) -> None:
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(run.id, Running(message="its process was there all the time"), force=True)
