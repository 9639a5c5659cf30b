"""Runs that were submitted to a Prefect server and have no manifest in the store yet: they are in a queue, or
are being started.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from atelier.engine.config.error import ConfigError
from atelier.flows.run.named_run import FEWEST
from atelier.infra.stack.stack import join_stack

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun  # late: 1.5 s

MOST = 200  # runs that are asked for
PART = "parent:"  # begins a tag of a task's run on a pool


@dataclass(frozen=True)
class QueuedRun:
    """`id` is the run's id in the store when it begins, `flow_run` Prefect's; `why`: what it waits for."""

    id: str
    flow_run: str
    why: str


def queued_run(root: str, word: str) -> QueuedRun | None:
    """The waiting run that a word means: its id here or in Prefect, the first or last characters of one, its
    page's address, or its name. None if there is none, or no server. Raises ConfigError for several. Only for
    words that mean no run of the store: runs that have begun are found as well.
    """
    found = [one for one in _waiting(root) if _is_meant(one, word.rstrip("/").rpartition("/")[2])]
    if len(found) > 1:
        ids = ", ".join(stored_id(one.id, one.expected_start_time) for one in found[:3])
        raise ConfigError("run", f"{len(found)} waiting runs are called {word}", f"give one's id: {ids}")
    return _described(found[0]) if found else None


def stored_id(flow_run: object, moment: datetime | None) -> str:
    """The id in store and MLflow of Prefect's run `flow_run`, scheduled for `moment`; a retry keeps it."""
    return f"{moment or datetime.now(UTC):%Y%m%d-%H%M%S}-{str(flow_run)[:6]}"


def _waiting(root: str) -> "list[FlowRun]":
    join_stack(root)
    if not os.environ.get("PREFECT_API_URL"):
        return []
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
    from prefect.client.schemas.objects import StateType

    from atelier.infra.stack import prefect_api  # late, as Prefect

    types = [StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING]
    state = FlowRunFilterState(type=FlowRunFilterStateType(any_=types))
    with suppress(ConfigError), prefect_api.server() as client:
        found = client.read_flow_runs(flow_run_filter=FlowRunFilter(state=state), limit=MOST)
        return [one for one in found if not any(tag.startswith(PART) for tag in one.tags)]
    return []


def _is_meant(one: "FlowRun", word: str) -> bool:
    ids = (stored_id(one.id, one.expected_start_time), str(one.id))
    is_id = word in ids or (len(word) >= FEWEST and any(i.startswith(word) or i.endswith(word) for i in ids))
    return is_id or one.name == word or f"name={word}" in (one.parameters.get("overrides") or ())


def _described(one: "FlowRun") -> QueuedRun:
    pool = one.work_pool_name or "its pool"
    why = f"waits in the queue of {pool} for a free worker"
    moment = one.expected_start_time
    if moment is not None and moment > datetime.now(UTC):
        why = f"is scheduled for {moment.astimezone():%Y-%m-%d %H:%M:%S}"
    elif one.state is not None and not one.state.is_scheduled():
        why = f"is being started by a worker of {pool}"
    return QueuedRun(stored_id(one.id, moment), str(one.id), why)
