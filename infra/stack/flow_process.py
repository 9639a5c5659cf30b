"""Process of one flow run on a worker: `python -m atelier.infra.stack.flow_process`, Prefect's engine with
additional settings. It is the fixed command in a pool's template, which no run can change.
"""

import logging
import os
import runpy
from contextlib import suppress
from uuid import UUID

from rich.console import Console

from atelier.infra.stack.prefect_results import refuse_results

os.environ["PREFECT_CLIENT_MAX_RETRIES"] = "8"  # 2 + 4 + ... + 256 s; a worker retries for less (settings.py)
NOISE = "Engine execution exited with unexpected exception"  # for every run that returns a failed state


def is_news(record: logging.LogRecord) -> bool:
    """False for the traceback through Prefect's code after a failure that the run has already logged."""
    return NOISE not in record.getMessage()


def go_on(self: Console) -> None:
    """Ignore a broken pipe when logging; Rich's default is to end the program."""
    self.quiet = True


def is_cancelled() -> bool:
    """Whether this process's run is cancelled; False while the server does not answer.

    Prefect signals a process that it knows. A run that was cancelled earlier, while its process was starting,
    would stay Cancelling until the server gives it up after minutes: here it becomes Cancelled.
    """
    from prefect.client.orchestration import (
        get_client,  # Prefect reads the settings above when it is imported
    )
    from prefect.states import Cancelled  # as above

    with suppress(Exception), get_client(sync_client=True) as client:
        run = client.read_flow_run(UUID(os.environ["PREFECT__FLOW_RUN_ID"]))
        if run.state is not None and run.state.is_cancelling():
            when = "before it began" if run.start_time is None else "while it ran"
            client.set_flow_run_state(run.id, Cancelled(message=f"cancelled {when}"), force=True)
            return True
        return run.state is not None and run.state.is_cancelled()
    return False


def main() -> None:
    """Run Prefect's engine, unless the run is cancelled; a cancelled run's process ends with exit code 0."""
    if is_cancelled():
        return
    try:
        runpy.run_module("prefect.engine", run_name="__main__", alter_sys=True)
    except SystemExit as ending:
        if ending.code and not is_cancelled():
            raise


if __name__ == "__main__":
    refuse_results()
    Console.on_broken_pipe = go_on  # a worker may end before its flows
    logging.getLogger("prefect.flow_engine").addFilter(is_news)
    logging.getLogger("prefect.engine").addFilter(is_news)
    logging.getLogger("prefect.flow_runs").addFilter(is_news)
    main()
