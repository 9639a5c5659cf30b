"""Plan a run, refuse it if it cannot work, and run it here or on a Prefect pool."""

import threading
import time

from atelier.engine.config.error import AtelierError, ConfigError, StoppedError
from atelier.engine.config.message import Message
from atelier.flows.run.compose import RunConfig
from atelier.flows.run.contexts import new_run_id
from atelier.flows.run.embedded_server import is_seen
from atelier.flows.run.execute import reuse_all, run_flow
from atelier.flows.run.other_sites import agents_of, other_sites
from atelier.flows.run.outcome import RunOutcome
from atelier.flows.run.plan import Plan, make_plan
from atelier.flows.run.pools import check_launcher
from atelier.flows.run.screen import Screen
from atelier.flows.run.table import duration
from atelier.infra.dag import Node
from atelier.infra.run.context import Listener
from atelier.infra.stack.stack import join_stack
from atelier.infra.store.run_manifest import manifests
from atelier.infra.store.store import Store
from atelier.tasks.register import is_owed


def run_to_end(
    frozen: RunConfig,
    store: Store,
    command: str,
    sweep: str = "",
    stop: threading.Event | None = None,
    run_id: str = "",
    listener: Listener | None = None,
    is_brief: bool = False,
) -> RunOutcome:
    """Plan and run, showing progress. Setting `stop` ends the run at a checkpoint; the `run_id` of an earlier
    run continues that run; `listener` also gets all messages; `is_brief`: no Prefect server is started.
    Raises ConfigError when the plan is refused.
    """
    frozen.check_runs()
    if not frozen.pool.is_served:
        for pool in frozen.pools:
            check_launcher(pool, store.root)
    elif frozen.here or frozen.ordered is not None:
        raise ConfigError(
            "pool",
            f"{frozen.pool.name} is served by Prefect, which cannot run over sites",
            "pool=here, or sites=[] for a run at one site",
        )
    if frozen.here and sweep:
        raise ConfigError("sites", "a sweep runs at one site", "sites=[]")
    with agents_of(frozen.sites, store.root):
        return _planned_and_run(frozen, store, command, sweep, stop, run_id, listener, is_brief)


def _planned_and_run(
    frozen: RunConfig,
    store: Store,
    command: str,
    sweep: str,
    stop: threading.Event | None,
    run_id: str,
    listener: Listener | None,
    is_brief: bool,
) -> RunOutcome:
    run_id = run_id or new_run_id()
    plan = make_plan(frozen, store)
    elsewhere = other_sites(frozen, plan, store, run_id) if plan.there else None
    if elsewhere is not None and not plan.refusals:
        plan = elsewhere.planned(plan)
    plan.check()
    with Screen() as screen:
        totals = plan.document()["totals"]
        takes = f", about {duration(plan.wall_s)}" if plan.wall_s else ""
        screen.line(
            f"{frozen.flow}: {totals['tasks']} tasks, {totals['reuse']} artifacts to reuse, {totals['run']}"
            f" to make{takes}   store {store.root}"
        )
        for note in plan.notes:
            screen.line(f"note: {note}")
        if frozen.pool.is_served:
            return _on_pool(frozen, plan, store, screen)
        if not (sweep or totals["run"] or _is_looked_at(frozen, plan, store)):
            return reuse_all(frozen, plan, store, command)

        def heard(node: str, message: Message) -> None:
            screen.on_message(node, message)
            if listener is not None:
                listener(node, message)

        return run_flow(
            frozen,
            plan,
            store,
            command,
            heard,
            sweep=sweep,
            stop=stop,
            run_id=run_id,
            elsewhere=elsewhere,
            is_brief=is_brief,
        )


def _is_looked_at(frozen: RunConfig, plan: Plan, store: Store) -> bool:
    """Whether to show a run that makes nothing: on a running server, or because a tracker still has to
    register a model.
    """
    if is_seen(store.root):
        return True
    registers = [node for node in plan.nodes if node.task == "register"]
    return frozen.tracker.kind != "none" and any(is_owed(node, store) for node in registers)


def _on_pool(frozen: RunConfig, plan: Plan, store: Store, screen: Screen) -> RunOutcome:
    """Submit the run to a Prefect pool and follow it."""
    started = time.monotonic()
    join_stack(store.root)
    from atelier.flows.deployments.submit import follow, submit  # late: Prefect, 1.5 s

    outcome = RunOutcome(run_id="", nodes=plan.nodes)
    missing = {node.name for node in plan.nodes if not is_made(node, store)}
    run_id = submit(frozen, store, screen.line)
    try:
        follow(run_id, frozen, store, screen.line)
        outcome.states = {n.name: "done" if n.name in missing else "reused" for n in plan.nodes}
    except (AtelierError, StoppedError) as error:
        outcome.failure = error
    ran = (one.id for one in manifests(store) if one.links.get("flow_run") == run_id)
    outcome.run_id = next(ran, "")
    outcome.total_s = time.monotonic() - started
    return outcome


def is_made(node: Node, store: Store) -> bool:
    """True when every product of the node is finished."""
    return all(store.find(p.kind, p.fingerprint) is not None for p in node.products.values())
