"""Run a node on a pool: start a run of `work` there, poll it, and restart it when it crashes."""

import hashlib
import threading
import time
from typing import cast

from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.deployments import run_deployment
from prefect.runtime import flow_run

from atelier.engine.config.error import AtelierError, ConfigError, StoppedError
from atelier.flows.deployments.cancellation import end_of
from atelier.flows.deployments.overview_page import OverviewPage
from atelier.flows.deployments.task_request import ParentRun, TaskRequest
from atelier.flows.run.compose import RunConfig
from atelier.flows.run.outcome import RunOutcome
from atelier.flows.run.work import work
from atelier.infra.dag import Node
from atelier.infra.launch.rendezvous import NodePlace
from atelier.infra.run.context import RunContext
from atelier.infra.stack import prefect_api
from atelier.infra.stack.deployments import WORK

SPREAD = ("train",)  # tasks that may run on several nodes
RESTARTS = 3
POLL_S = 1.0
STOP_S = 60.0  # for a stopped run's checkpoint
UNSERVED_S = 30.0  # after this time a run that has not started is reported


class TaskSubmitter:
    """Runs the nodes of one parent run on pools."""

    def __init__(self, frozen: RunConfig, command: str, code: str, overview_page: OverviewPage) -> None:
        self.frozen, self.code, self.overview_page, self.command = frozen, code, overview_page, command

    def make(self, node: Node, context: RunContext, outcome: RunOutcome) -> dict[str, str]:
        """Run the node on its pool. Reused nodes and nodes without ranks run in this process."""
        if node.ranks == 0 or not context.missing(node):
            return work(node, context, outcome.states, outcome.errors)
        outcome.states[node.name] = "running"
        try:
            self._to_the_end(node, context)
            outcome.states[node.name] = "done"
        except AtelierError as error:
            outcome.errors[node.name] = error
            outcome.states[node.name] = "stopped" if isinstance(error, StoppedError) else "failed"
            if outcome.states[node.name] == "failed":
                context.say(node, error=str(error))
            raise
        finally:
            context.say(node, state=outcome.states[node.name])
        return {key: product.fingerprint for key, product in node.products.items()}

    def _to_the_end(self, node: Node, context: RunContext) -> None:
        for attempt in range(RESTARTS + 1):
            if context.stop.is_set():
                raise StoppedError("stopped")
            state = worst(self._watch(self._start(node, context, attempt), node, context))
            if state.type == StateType.COMPLETED and not context.missing(node):
                return
            if state.type == StateType.COMPLETED:
                pools = ", ".join(self.pools(node))
                raise AtelierError(
                    f"{node.name}: its run on {pools} succeeded, but {context.store.root} has no record of"
                    " it; give that pool's workers the same ATELIER_ROOT"
                )
            if state.type != StateType.CRASHED:
                is_stop = state.type in (StateType.CANCELLED, StateType.CANCELLING)
                raise (StoppedError if is_stop else AtelierError)(state.message or f"ended as {state.name}")
            if attempt < RESTARTS:
                again = f"starting it again ({attempt + 1} of {RESTARTS})"
                context.say(node, warning=f"its run crashed: {state.message}; {again}")
        raise AtelierError(f"{node.name}: crashed {RESTARTS + 1} times, the last time: {state.message}")

    def pools(self, node: Node) -> tuple[str, ...]:
        """The pools on which the node runs, one for each machine."""
        pool = self.frozen.pool_of(node.task)
        members = pool.members
        if not members:
            return (pool.name,)
        return members if node.task in SPREAD and node.ranks > 1 else members[:1]

    def _start(self, node: Node, context: RunContext, attempt: int) -> list[str]:
        """Start a run of `work` on each of the node's pools. Returns their ids in order."""
        pools, key = self.pools(node), f"{flow_run.id}-{flow_run.run_count}-{node.name}-{attempt}"
        gang = hashlib.sha256(key.encode()).hexdigest()[:16]
        resume = context.resume
        if attempt or flow_run.run_count > 1:  # only the first attempt starts anew; others resume
            resume = resume.model_copy(update={"fresh": ()})
        about = ParentRun(
            id=context.run_id,
            flow=context.flow,
            command=context.command,
            pool=self.frozen.pool_of(node.task),
            tracker=self.frozen.tracker,
            links=context.links,
            resume=resume,
        )
        runs = []
        for index, pool in enumerate(pools):
            place = NodePlace(id=gang, index=index, pools=pools) if len(pools) > 1 else None
            request = TaskRequest(node=node, run=about, code=self.code, gang=place)
            name = node.name if index == 0 else f"{node.name} node {index}"
            runs.append(self._submit(f"{WORK}/{pool}", context.stop, request, name, f"{key}-{index}"))
        self.overview_page.began(node.name, runs[0], prefect_api.page(runs[0]))
        return runs

    def _submit(
        self, deployment: str, stop: threading.Event, request: TaskRequest, name: str, key: str
    ) -> str:
        """Start a run, waiting while the server is unavailable. Returns its id. The `key` prevents that a
        retry starts a second run. Raises StoppedError when stopped meanwhile.
        """
        while True:
            try:
                run = run_deployment(
                    deployment,
                    timeout=0,
                    tags=[f"parent:{flow_run.id}"],
                    work_queue_name=self.frozen.pool.queue,
                    parameters=request.parameters(),
                    flow_run_name=name,
                    idempotency_key=key,
                )
                return str(cast(FlowRun, run).id)  # the call is not awaited here
            except Exception as error:
                if not prefect_api.is_away(error):
                    raise
                if stop.wait(POLL_S):
                    raise StoppedError("stopped; Prefect's server was unavailable") from None

    def _watch(self, runs: list[str], node: Node, context: RunContext) -> list[State]:
        """Wait for the end of all runs, through outages of the server. A stop of the parent run, or a failure
        of one run, cancels the others.
        """
        began, is_told, stopped_at = time.monotonic(), False, 0.0
        silent_since: dict[str, float] = {}
        while True:
            found = [prefect_api.read_run(run) for run in runs]
            states = [run.state for run in found if run is not None and run.state is not None]
            ended = [state for run in found if (state := end_of(run, silent_since)) is not None]
            if len(ended) == len(runs):
                return ended
            is_broken = any(not state.is_completed() for state in ended)
            if (context.stop.is_set() or is_broken) and not stopped_at:
                stopped_at = time.monotonic()
                for run in found:
                    if run is not None and run.state is not None and not run.state.is_final():
                        prefect_api.cancel(str(run.id), "its parent was stopped")
            if stopped_at and time.monotonic() - stopped_at > STOP_S:
                if ended:
                    return ended
                raise StoppedError("stopped; its run on the pool has not ended")
            is_waiting = any(state.is_scheduled() for state in states)
            if is_waiting and not is_told and time.monotonic() - began > UNSERVED_S:
                is_told = True
                self._tell_why_it_waits(node, context)
            wait(context.stop, POLL_S, is_over=bool(stopped_at))

    def _tell_why_it_waits(self, node: Node, context: RunContext) -> None:
        try:
            with prefect_api.server() as client:
                served = {pool: bool(prefect_api.workers(client, pool)) for pool in self.pools(node)}
        except ConfigError:
            return
        reasons = [
            f"all slots of {pool} are taken"
            if is_served
            else f"no worker serves {pool}: atelier worker {pool}"
            for pool, is_served in served.items()
        ]
        context.say(node, waiting=f"waits: {'; '.join(reasons)}")


def worst(states: list[State]) -> State:
    """The state of all runs: a crash first, because it causes the others' failures."""
    order = (StateType.CRASHED, StateType.FAILED, StateType.CANCELLED, StateType.CANCELLING)
    return min(states, key=lambda state: order.index(state.type) if state.type in order else len(order))


def wait(stop: threading.Event, seconds: float, *, is_over: bool) -> None:
    """Sleep. A new stop ends it early."""
    if is_over:
        time.sleep(seconds)
    else:
        stop.wait(seconds)
