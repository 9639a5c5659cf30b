"""Prefect's worker, `python -m atelier.infra.stack.pool_worker worker start ...`, that does not die of a run
which is started again while it still ends, and that can be ended wherever it was started.

Prefect 3.8 takes a run's token of the worker's limit when it submits it, and raises where the run has one
already: a cancelled run that is set to run again at once. Such a run is left for the next look, when its
token is back.

It also passes SIGTERM on to itself as SIGINT, which a process ignores that a script has started with &.
"""

import signal
from typing import Any

from prefect.cli import app
from prefect.workers.base import BaseWorker


def be_patient() -> None:
    """Have all workers of this process pass over runs that still hold a token."""
    submit = BaseWorker._submit_scheduled_flow_runs

    async def submit_the_rest(self: Any, flow_run_response: list[Any]) -> Any:
        held = self._limiter.statistics().borrowers if self._limiter else ()
        rest = [entry for entry in flow_run_response if entry.flow_run.id not in held]
        return await submit(self, flow_run_response=rest)

    BaseWorker._submit_scheduled_flow_runs = submit_the_rest  # type: ignore[method-assign]


def hear_interrupts() -> None:
    """Have SIGINT end this process, as if a terminal had started it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


if __name__ == "__main__":
    hear_interrupts()
    be_patient()
    app()
