"""Have a node made on a pool: a run of `work` there, watched until it ends, started again when it crashes."""

import threading
import time
from typing import Any

from prefect.client.schemas.objects import FlowRun, StateType
from prefect.deployments import run_deployment
from prefect.runtime import flow_run

from engine.spec.error import AtelierError, ConfigError, StoppedError
from flows.cli.compose import Frozen
from flows.cli.execute import Outcome
from flows.cli.work import work
from flows.served.board import Board
from infra.dag import Node
from infra.house import House
from infra.stack import api

RESTARTS = 3
POLL_S = 1.0
STOP_S = 60.0  # for a stopped run's checkpoint
UNSERVED_S = 30.0  # a run that nobody has begun after this long is told of


class Remote:
    """Makes the nodes of one parent run."""

    def __init__(self, frozen: Frozen, command: str, code: str, board: Board) -> None:
        self.frozen, self.code, self.board, self.command = frozen, code, board, command

    def make(self, node: Node, house: House, outcome: Outcome) -> dict[str, Any]:
        """Run the node on its pool; reused nodes, and those without a gang, in this process."""
        if node.ranks == 0 or not self.frozen.pool.name or not house.missing(node):
            return work(node, house, outcome.states, outcome.errors)
        outcome.states[node.name] = "running"
        try:
            self._to_the_end(node, house)
            outcome.states[node.name] = "done"
        except AtelierError as error:
            outcome.errors[node.name] = error
            outcome.states[node.name] = "stopped" if isinstance(error, StoppedError) else "failed"
            raise
        finally:
            house.say(node, state=outcome.states[node.name])
        return {key: product.fingerprint for key, product in node.products.items()}

    def _to_the_end(self, node: Node, house: House) -> None:
        for attempt in range(RESTARTS + 1):
            if house.stop.is_set():
                raise StoppedError("stopped")
            run = self._watch(self._start(node, house, attempt), node, house)
            state = run.state
            assert state is not None  # it is final
            if state.type == StateType.COMPLETED and not house.missing(node):
                return
            if state.type == StateType.COMPLETED:
                raise AtelierError(
                    f"{node.name}: its run on {self.frozen.pool.name} ended well, but {house.store.root} has"
                    " no record of it; give that pool's workers the same ATELIER_ROOT"
                )
            if state.type != StateType.CRASHED:
                is_stop = state.type in (StateType.CANCELLED, StateType.CANCELLING)
                raise (StoppedError if is_stop else AtelierError)(state.message or f"ended as {state.name}")
            if attempt < RESTARTS:
                again = f"starting it again ({attempt + 1} of {RESTARTS})"
                house.say(node, warning=f"its run crashed: {state.message}; {again}")
        raise AtelierError(f"{node.name}: crashed {RESTARTS + 1} times, the last time: {state.message}")

    def _start(self, node: Node, house: House, attempt: int) -> str:
        pool = self.frozen.pool
        about = {
            "id": house.run_id,
            "flow": house.flow,
            "command": house.command,
            "pool": pool.model_dump(mode="json"),
            "tracker": self.frozen.tracker.model_dump(mode="json"),
            "links": house.links,
        }
        run: Any = run_deployment(
            f"work/{pool.name}",
            parameters={"node": node.model_dump(mode="json"), "run": about, "code": self.code},
            flow_run_name=node.name,
            timeout=0,
            tags=[f"parent:{flow_run.id}"],
            work_queue_name=pool.queue,
            idempotency_key=f"{flow_run.id}-{flow_run.run_count}-{node.name}-{attempt}",
        )
        self.board.began(node.name, str(run.id), api.page(str(run.id)))
        return str(run.id)

    def _watch(self, run_id: str, node: Node, house: House) -> FlowRun:
        """Wait for the run's end, through outages of the server; a stop of ours is passed on to it."""
        began, is_told, stopped_at = time.monotonic(), False, 0.0
        while True:
            run = api.read_run(run_id)
            if run is not None and run.state is not None and run.state.is_final():
                return run
            if house.stop.is_set() and not stopped_at:
                stopped_at = time.monotonic()
                api.cancel(run_id)
            if stopped_at and time.monotonic() - stopped_at > STOP_S:
                raise StoppedError("stopped; its run on the pool has not answered")
            is_waiting = run is not None and run.state is not None and run.state.is_scheduled()
            if is_waiting and not is_told and time.monotonic() - began > UNSERVED_S:
                is_told = True
                self._tell_why_it_waits(node, house)
            wait(house.stop, POLL_S, is_over=bool(stopped_at))

    def _tell_why_it_waits(self, node: Node, house: House) -> None:
        pool = self.frozen.pool.name
        try:
            with api.server() as client:
                served = api.workers(client, pool)
        except ConfigError:
            return
        reason = (
            f"all slots of {pool} are taken" if served else f"no worker serves {pool}: atelier worker {pool}"
        )
        house.say(node, waiting=f"waits: {reason}")


def wait(stop: threading.Event, seconds: float, *, is_over: bool) -> None:
    """Sleep; a stop that has not been acted on yet ends it."""
    if is_over:
        time.sleep(seconds)
    else:
        stop.wait(seconds)
