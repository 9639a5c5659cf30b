"""Run a flow: its body inside a Prefect flow, each node a Prefect task. It runs under an embedded Prefect
server unless one is configured, or inside a flow that a Prefect worker started (flows/deployments).
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any

from atelier.engine.config.error import AtelierError, ConfigError, StoppedError, of_system, printable
from atelier.flows.run.cancel_request import obeying, withdraw
from atelier.flows.run.compose import RunConfig
from atelier.flows.run.contexts import new_run_id, open_context, set_forks
from atelier.flows.run.embedded_server import EmbeddedServer, embed, is_seen
from atelier.flows.run.measured import record_measurements
from atelier.flows.run.other_sites import OtherSites
from atelier.flows.run.outcome import EarlyStart, PrefectScheduler, RunOutcome, conclude, wait_for
from atelier.flows.run.plan import Plan
from atelier.flows.run.pools import check_nodes_here
from atelier.flows.run.prefect_page import show_plan, show_report
from atelier.flows.run.registry import body
from atelier.flows.run.work import mend, work
from atelier.infra.dag import Future, Node, scheduling, stop_scheduling
from atelier.infra.run.context import Listener, RunContext
from atelier.infra.store.existing_model import looking_in
from atelier.infra.store.lease import Holder
from atelier.infra.store.removal import wait_for_removals
from atelier.infra.store.run_manifest import RunManifest, described, write_manifest
from atelier.infra.store.store import Store
from atelier.infra.tracking.factory import TrackerSpec

AGAIN_S = 1.0  # one stop may send several signals: from a terminal and a worker
MOST_AT_ONCE = 16  # nodes; trainings also wait for slots


Make = Callable[[Node, RunContext, RunOutcome], dict[str, str]]
Host = Callable[[RunConfig, RunContext, RunOutcome, Callable[[], None]], None]


def make_here(node: Node, context: RunContext, outcome: RunOutcome) -> dict[str, str]:
    """Run the node in this process."""
    return work(node, context.of_task(node.task), outcome.states, outcome.errors)


def run_flow(
    frozen: RunConfig,
    plan: Plan,
    store: Store,
    command: str,
    listener: Listener,
    *,
    sweep: str = "",
    run_id: str = "",
    host: Host | None = None,
    make: Make = make_here,
    stop: threading.Event | None = None,
    elsewhere: OtherSites | None = None,
    is_brief: bool = False,
) -> RunOutcome:
    """Run the flow to its end; failures are in the outcome. Ctrl-C and SIGTERM stop trainings at a
    checkpoint.

    `host` runs the flow's body within a Prefect flow, by default one of this process; `make` runs a node,
    `elsewhere` the nodes of other sites. The `run_id` of an earlier run continues its page in MLflow. Setting
    `stop` ends the run at a checkpoint. `is_brief`: no server is started for this run, so that it has a page
    only where one is configured.
    """
    if plan.there and elsewhere is None:
        raise ConfigError("sites", "a sweep, a form or a job of an array runs at one site", "leave it out")
    if make is make_here:
        check_nodes_here(plan.nodes, frozen.pool_of, store)
    started = time.monotonic()
    run_id = run_id or new_run_id()
    outcome = RunOutcome(run_id=run_id, nodes=plan.nodes)
    context = open_context(frozen, store, command, run_id, listener, sweep=sweep, stop=stop)
    if frozen.rerun is not None:
        context.links["rerun_of"] = frozen.rerun.run
    manifest = _beginning(frozen, plan, command, run_id, sweep)
    withdraw(store.root, run_id)
    write_manifest(store, manifest)
    if make is make_here:
        set_forks(plan.nodes, context)
    early = EarlyStart(plan.nodes, lambda node: make(node, context, outcome), MOST_AT_ONCE)
    with stopping(context.stop), obeying(store.root, run_id, context.stop, _say):
        try:
            _rely_on(plan, context)
            alone = partial(_embedded, early=early if elsewhere is None else None, is_brief=is_brief)
            (host or alone)(
                frozen,
                context,
                outcome,
                lambda: _inside(frozen, plan, context, manifest, outcome, started, early, elsewhere),
            )
        except StoppedError as error:
            outcome.failure = outcome.failure or error
        except KeyboardInterrupt:
            outcome.failure = StoppedError("stopped")
        except AtelierError as error:
            outcome.failure = outcome.failure or error
        except Exception as error:
            outcome.failure = outcome.failure or error
            write_manifest(store, _ended(manifest, outcome, context))
            raise
    try:
        write_manifest(store, _ended(manifest, outcome, context))
    except OSError as error:
        outcome.failure = outcome.failure or of_system(error)
    made = [name for name, state in outcome.states.items() if state == "done"]
    with suppress(OSError):  # a lost measurement is harmless
        record_measurements(plan, made, store, frozen.pool_of("train"))
    outcome.untracked = context.tracker.close(outcome.status)
    outcome.places = list(context.tracker.places)
    outcome.total_s = time.monotonic() - started
    return outcome


def reuse_all(frozen: RunConfig, plan: Plan, store: Store, command: str) -> RunOutcome:
    """Reuse a plan with nothing to make: write a manifest and repair damaged records beside finished models,
    without server or tracker.
    """
    started = time.monotonic()
    outcome = RunOutcome(run_id=new_run_id(), nodes=plan.nodes)
    outcome.states = {node.name: "reused" for node in plan.nodes}
    untracked = replace(frozen, tracker=TrackerSpec())
    context = open_context(untracked, store, command, outcome.run_id, lambda node, message: None)
    beginning = _beginning(frozen, plan, command, outcome.run_id, "")
    write_manifest(store, beginning)
    with stopping(context.stop):
        _rely_on(plan, context)
    mend(plan.nodes, context)
    write_manifest(store, _ended(beginning, outcome, context))
    outcome.total_s = time.monotonic() - started
    return outcome


def _beginning(frozen: RunConfig, plan: Plan, command: str, run_id: str, sweep: str) -> RunManifest:
    """The manifest of a run in progress."""
    return RunManifest(
        id=run_id,
        flow=frozen.flow,
        command=command,
        overrides=frozen.overrides,
        sweep=sweep,
        rerun_of=frozen.rerun.run if frozen.rerun else "",
        config=frozen.document,
        started=time.time(),
        status="running",
        holder=vars(Holder.me(command)),
        tasks=tuple(row for node in plan.nodes for row in described(node)),
    )


def _rely_on(plan: Plan, context: RunContext) -> None:
    """Called when the run's manifest lists all inputs: wait for removals in progress, and check that each
    input that no node makes exists. Raises AtelierError if one was removed.
    """
    wait_for_removals(
        context.store.root, lambda text: print(printable(text, 0), file=sys.stderr), context.stop
    )
    every = [*plan.nodes, *(node for nodes in plan.there.values() for node in nodes)]
    made = {(p.kind, p.fingerprint) for node in every for p in node.products.values()}
    for role, (kind, fingerprint) in {k: v for node in plan.nodes for k, v in node.inputs.items()}.items():
        if (kind, fingerprint) not in made and context.store.find(kind, fingerprint) is None:
            raise AtelierError(f"{role}: {kind} {fingerprint[:8]} was removed meanwhile; make it again first")


def _ended(manifest: RunManifest, outcome: RunOutcome, context: RunContext) -> RunManifest:
    ending = {
        "ended": time.time(),
        "status": outcome.status,
        "states": outcome.states,
        "links": context.links | {f"mlflow.{key}": url for key, url in context.tracker.urls.items()},
    }
    return manifest.model_copy(update=ending)


@contextmanager
def stopping(stop: threading.Event) -> Iterator[None]:
    """SIGINT and SIGTERM ask all trainings to checkpoint. Another signal, later than AGAIN_S, ends this
    process (the supervisors then end their ranks). May be nested: Prefect takes SIGTERM for itself while a
    flow runs.
    """
    asked: list[float] = []  # times

    def on_signal(number: int, frame: FrameType | None) -> None:
        asked.append(time.monotonic())
        if len(asked) > 1:
            if asked[-1] - asked[0] > AGAIN_S:
                os._exit(1)
            return
        stop.set()
        print("\nstopping: running tasks write a checkpoint (again to leave at once)", file=sys.stderr)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _embedded(
    frozen: RunConfig,
    context: RunContext,
    outcome: RunOutcome,
    inside: Callable[[], None],
    early: EarlyStart | None,
    is_brief: bool,
) -> None:
    """Call `inside` within a Prefect flow of this process. While a server of its own starts, `early` runs the
    first nodes, and all of them if that server was left before the flow began, or if none is started.
    Whatever fails, those that were started end before this returns.
    """
    if is_brief and early is not None and not is_seen(context.store.root):
        with early.running(context.stop):
            early.finish()
        conclude(outcome.nodes, outcome)
        outcome.is_whole = True
        return
    server = embed(context.store.root)
    if server is None or early is None:
        return _in_flow(frozen, context, outcome, inside, server)
    with early.running(context.stop):
        try:
            _in_flow(frozen, context, outcome, inside, server)
        except Exception as error:
            if not server.is_left or early.is_ended:
                raise
            early.finish()
            conclude(outcome.nodes, outcome)
            outcome.is_whole = True
            _say(f"Prefect has no page of this run ({type(error).__name__}); the run itself is finished")


def _in_flow(
    frozen: RunConfig,
    context: RunContext,
    outcome: RunOutcome,
    inside: Callable[[], None],
    server: EmbeddedServer | None,
) -> None:
    import prefect  # 1.5 s: plans, help and errors do without
    from prefect.client.schemas.objects import State
    from prefect.runtime import flow_run  # known only inside a run
    from prefect.states import Cancelled
    from prefect.task_runners import ThreadPoolTaskRunner

    from atelier.infra.stack import prefect_api  # as above
    from atelier.infra.stack.prefect_results import refuse_results  # as above

    refuse_results()
    runner: Any = ThreadPoolTaskRunner(max_workers=MOST_AT_ONCE)  # Prefect's types expect other futures

    @prefect.flow(
        name=frozen.flow,
        flow_run_name=lambda: frozen.title(outcome.run_id),  # a string would be a template, its braces fields
        task_runner=runner,
        validate_parameters=False,
    )
    def dag(config: dict[str, Any]) -> State | None:  # Prefect derives a schema from it
        if server is None:
            context.links["prefect.url"] = prefect_api.page(str(flow_run.id))
        inside()
        if outcome.is_stopped:
            return Cancelled(message=str(outcome.failure))
        if outcome.failure is not None:
            raise outcome.failure
        return None

    if server is not None:
        server.keep(_say)
        server.wait()
    else:
        prefect_api.check_answers()
    try:
        dag(dict(frozen.document))
    except AtelierError:
        raise
    except Exception as error:  # Prefect's, if its server is gone; `states` has the run's end
        if not outcome.is_whole:
            raise
        if outcome.failure is None:
            why = type(error).__name__
            _say(f"Prefect could not record the run's end ({why}); the run itself is finished")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _inside(
    frozen: RunConfig,
    plan: Plan,
    context: RunContext,
    manifest: RunManifest,
    outcome: RunOutcome,
    started: float,
    early: EarlyStart,
    elsewhere: OtherSites | None,
) -> None:
    """Submit the body's nodes to the current Prefect flow, wait for all, show the report."""
    import prefect  # imported by the host
    from prefect.runtime import flow_run  # valid only inside a run

    @prefect.task(name="work", persist_result=False)
    def node_task(node: dict[str, Any], after: list[Any]) -> dict[str, str]:  # as above
        found = Node.model_validate(node)
        if found.site and elsewhere is not None:
            elsewhere.make(found, context, outcome.states, outcome.errors)
            return {}
        try:
            return early.make(found)
        except AtelierError:
            if elsewhere is not None:
                elsewhere.fail(context)
            raise

    def submit(node: Node, waits: list[Future]) -> Future:
        named = node_task.with_options(name=node.task, task_run_name=lambda: node.name)
        return named.submit(node.model_dump(mode="json"), waits)

    early.end()
    outcome.prefect_s = time.monotonic() - started
    context.links["flow_run"] = str(flow_run.id)
    with suppress(OSError):  # for `atelier open`; the run's end writes them again
        write_manifest(context.store, manifest.model_copy(update={"links": dict(context.links)}))
    context.tracker.link(**context.links)
    show_plan(plan)
    is_part = bool(plan.there) or frozen.ordered is not None
    here = {node.name for node in plan.nodes} if is_part else None
    scheduler = PrefectScheduler(submit, here, plan.there)
    looking_in(context.store)
    shown = elsewhere.showing(plan, context, outcome.states) if elsewhere is not None else nullcontext()
    with stopping(context.stop), shown:
        token = scheduling(scheduler)
        try:
            if elsewhere is not None:
                elsewhere.begin()
            body(frozen.flow)(**frozen.call())
        finally:
            stop_scheduling(token)
            wait_for(scheduler, outcome)
            if elsewhere is not None:
                elsewhere.close()
        outcome.is_whole = True
    if outcome.failure is None:
        show_report(outcome.nodes, context)
