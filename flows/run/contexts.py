"""The run context of a flow's nodes in this process, with one for each pool that runs some of them."""

import threading
import time
import uuid
from collections.abc import Sequence

from atelier.engine.io.fork_server import is_possible
from atelier.flows.run.compose import RunConfig
from atelier.flows.run.pools import site_of
from atelier.infra.code.provenance import has_torch
from atelier.infra.dag import Node
from atelier.infra.launch.gang import fork_server
from atelier.infra.launch.slots import core_slots
from atelier.infra.run.context import Listener, RunContext
from atelier.infra.run.run_log import RunLog
from atelier.infra.store.local_folders import scratch_of
from atelier.infra.store.store import Store
from atelier.infra.tracking.factory import open_tracker


def new_run_id() -> str:
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:6]}"


def open_context(
    frozen: RunConfig,
    store: Store,
    command: str,
    run_id: str,
    listener: Listener,
    *,
    sweep: str = "",
    stop: threading.Event | None = None,
) -> RunContext:
    """The run context of this process's nodes."""
    scratch = scratch_of(store, run_id)
    tracker = open_tracker(
        frozen.tracker,
        store,
        flow=frozen.flow,
        command=command,
        run_id=run_id,
        config=frozen.document,
        title=frozen.title(run_id),
        sweep=sweep,
    )
    context = RunContext(
        store=store,
        slots=core_slots(frozen.pool, store),
        scratch=scratch,
        pool=frozen.pool,
        site=site_of(frozen.pool),
        run_id=run_id,
        flow=frozen.flow,
        command=command,
        listener=RunLog(scratch, listener),
        tracker=tracker,
        resume=frozen.resume,
        stop=stop or threading.Event(),
    )
    for task, pool in frozen.task_pools.items():
        context.put_on(task, pool, site_of(pool))
    return context


def set_forks(nodes: Sequence[Node], context: RunContext) -> None:
    """Let a fork server start the ranks of each pool where that helps; it starts its imports now."""
    for one in (context, *context.others.values()):
        mine = [node for node in nodes if context.of_task(node.task) is one]
        one.forks = _forks(mine, one)


def _forks(nodes: Sequence[Node], context: RunContext) -> bool:
    """Whether ranks of these nodes are forked. Not for a single rank, another machine, or GPUs, or
    without torch."""
    is_here = context.pool.launcher == "here" and context.pool.is_cpu
    if not is_here or not is_possible() or not has_torch():
        return False
    gangs = [node for node in nodes if node.ranks and context.missing(node)]
    if sum(node.ranks for node in gangs) < 2:
        return False
    return fork_server(context.store.root) is not None
