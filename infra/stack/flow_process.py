"""Process of one flow run on a worker: `python -m atelier.infra.stack.flow_process`, Prefect's engine with
additional settings. It is the fixed command in a pool's template, which no run can change.
"""

import logging
import os
import runpy

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


if __name__ == "__main__":
    refuse_results()
    Console.on_broken_pipe = go_on  # a worker may end before its flows
    logging.getLogger("prefect.flow_engine").addFilter(is_news)
    logging.getLogger("prefect.engine").addFilter(is_news)
    logging.getLogger("prefect.flow_runs").addFilter(is_news)
    runpy.run_module("prefect.engine", run_name="__main__", alter_sys=True)
