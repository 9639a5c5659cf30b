"""Prefect's worker with two fixes: `python -m atelier.infra.stack.pool_worker worker start ...`.

Prefect 3.8 acquires a token of the worker's limiter for each submitted run, and raises when the run still has
one: a cancelled run that is rescheduled at once. Such a run is left for the next poll, when its token is
released.

The worker also forwards SIGTERM to itself as SIGINT, which a process started with & by a script ignores; the
default handler is restored.
"""

import signal

from prefect.cli import app
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import WorkerFlowRunResponse
from prefect.workers.base import BaseWorker

from atelier.engine.config.tested import is_on
from atelier.infra.stack.prefect_results import refuse_results


def be_patient() -> None:
    """Patch Prefect: workers of this process skip runs that still hold a limiter token."""
    if not is_on("patience"):
        return
    submit = BaseWorker._submit_scheduled_flow_runs

    async def submit_the_rest(
        self: BaseWorker, flow_run_response: list[WorkerFlowRunResponse]
    ) -> list[FlowRun]:
        held = self._limiter.statistics().borrowers if self._limiter else ()
        rest = [entry for entry in flow_run_response if entry.flow_run.id not in held]
        return await submit(self, flow_run_response=rest)

    BaseWorker._submit_scheduled_flow_runs = submit_the_rest  # type: ignore[method-assign]


def hear_interrupts() -> None:
    """Restore the default handler of SIGINT, as in a process started from a terminal."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


if __name__ == "__main__":
    hear_interrupts()
    be_patient()
    refuse_results()
    app()
