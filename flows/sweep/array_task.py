"""Run a point of a sweep as a task of a job array:
`python -m atelier.flows.sweep.array_task <root> <sweep> <code>`.

It runs the point on this node and writes its ending to the sweep's ledger. SIGTERM stops it at a checkpoint;
a preempted task is requeued.
"""

import os
import shlex
import signal
import sys
import tempfile
import threading
from dataclasses import replace

from atelier.engine.config.error import AtelierError, StoppedError, of_system
from atelier.engine.config.message import Message
from atelier.engine.config.role import Role
from atelier.flows.run.compose import compose
from atelier.flows.run.execute import run_flow
from atelier.flows.run.outcome import RunOutcome
from atelier.flows.run.plan import make_plan
from atelier.flows.run.screen import Screen
from atelier.flows.run.sweep_ledger import DONE, FAILED, STOPPED, Ledger, PointEnd, PointEntry
from atelier.flows.run.sweep_point import with_companions
from atelier.infra.code.frozen import go_on_frozen
from atelier.infra.launch.slurm import requeue_this_job
from atelier.infra.run.context import Listener
from atelier.infra.store.store import Store
from atelier.infra.tracking.factory import TrackerSpec

NUMBER = "SLURM_ARRAY_TASK_ID"


def run(ledger: Ledger, entry: PointEntry, on_message: Listener, stop: threading.Event) -> RunOutcome:
    """Run the point on all of this node, without a tracker. Raises ConfigError when its plan is refused."""
    frozen = compose(ledger.about().flow, entry.words)
    here = frozen.pool.model_copy(update={"launcher": "here", "name": ""})
    frozen = replace(frozen, pool=here, tracker=TrackerSpec())
    roles = {name: Role.model_validate(document) for name, document in entry.companions.items()}
    frozen = with_companions(frozen, roles)
    plan = make_plan(frozen, ledger.store)
    plan.check()
    command = "atelier " + shlex.join([frozen.flow, *frozen.overrides])
    return run_flow(
        frozen, plan, ledger.store, command, on_message, sweep=ledger.id, run_id=entry.run, stop=stop
    )


def main() -> int:
    """Run the point and write its ending to the ledger. Returns 0 only if the point is done."""
    root, sweep, code = sys.argv[1:]
    try:
        go_on_frozen(root, code, "atelier.flows.sweep.array_task", root, sweep, code)
    except AtelierError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    os.environ["ATELIER_ROOT"] = root
    stop, moved = threading.Event(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())  # until the run has a handler of its own
    ledger = Ledger(Store(root), sweep)
    entry = ledger.entry(int(os.environ[NUMBER]))
    how: PointEnd = {"state": DONE}
    with tempfile.TemporaryDirectory(prefix="atelier-element-") as home, Screen() as screen:
        os.environ["PREFECT_HOME"] = home  # a Prefect server of this node alone

        def on_message(node: str, message: Message) -> None:
            if "progress" in message:
                moved.set()
            screen.on_message(node, message)

        try:
            failure = run(ledger, entry, on_message, stop).failure
        except (AtelierError, OSError) as error:
            failure = of_system(error) if isinstance(error, OSError) else error
    if isinstance(failure, StoppedError):
        how = {"state": STOPPED}
    elif failure is not None:
        how = {"state": FAILED, "error": str(failure)}
        print(failure, file=sys.stderr)
    ledger.tell_end(entry.run, {**how, "has_moved": moved.is_set()})
    if isinstance(failure, StoppedError):
        requeue_this_job()
    return 0 if failure is None else 1


if __name__ == "__main__":
    sys.exit(main())
