"""Set up a Prefect server for `atelier up`: pools, a deployment for every flow, `work` on every pool, and the
automation that ends the runs of dead processes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import TypedDict

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentUpdate, WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
from prefect.client.schemas.objects import State, StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification
from prefect.events.utilities import emit_event
from prefect.exceptions import ObjectNotFound

from atelier.engine.config.base import Json
from atelier.engine.config.error import ConfigError

DEPLOYMENT = "atelier"  # name of every flow's deployment, as in `titan/atelier`
WORK = "work"
TAG = "atelier"
DEAD_AFTER_S = 60  # two heartbeats
ENTRY = "atelier.flows.deployments.entry"
# A pool's jobs are this command in the worker's environment. Users who submit runs must not be able to change
# either: the template has no variables, and no `env`, into which a worker would merge the run's `env`.
COMMAND = "python -m atelier.infra.stack.flow_process"
TEMPLATE: dict[str, Json] = {
    "job_configuration": {"stream_output": True, "command": COMMAND},
    "variables": {"type": "object", "properties": {}, "additionalProperties": False},
}
QUEUES = ("urgent", "default", "idle")
ENDS = ("Completed", "Failed", "Crashed", "Cancelled", "Cancelling", "Paused", "Suspended", "AwaitingRetry")
BEGUN = ("Pending", "Submitting", "Running")  # a process runs it, or a worker is about to start it
HEARTBEAT = "prefect.flow-run.heartbeat"
SILENCE = "its process has sent no heartbeat for a minute; start the run again to continue"


@dataclass(frozen=True, kw_only=True)
class Deployed:
    """A flow to deploy; `form` is the JSON schema of its parameters."""

    flow: str
    about: str
    pool: str
    form: Mapping[str, Json]
    name: str = DEPLOYMENT
    entry: str = ""


def put_pool(client: SyncPrefectClient, name: str, about: str, limit: int) -> None:
    """Create or update a process pool that runs at most `limit` flows at once. A limit that a user has set on
    its page stays until `limit` changes: the description records the last one.
    """
    about = f"{about}; {limit} at once"
    try:
        found = client.read_work_pool(name)
    except ObjectNotFound:
        client.create_work_pool(
            WorkPoolCreate(
                name=name,
                type="process",
                description=about,
                concurrency_limit=limit,
                base_job_template=TEMPLATE,
            )
        )
        return
    new = {} if found.description == about else {"description": about, "concurrency_limit": limit}
    client.update_work_pool(name, WorkPoolUpdate(base_job_template=TEMPLATE, **new))


def check_command(client: SyncPrefectClient, pool: str) -> None:
    """Raises ConfigError if the pool starts its runs with another command than this code's."""
    command = client.read_work_pool(pool).base_job_template.get("job_configuration", {}).get("command")
    if command != COMMAND:
        way_out = "`atelier up` or python -m atelier.flows.deployments.deploy updates the server"
        raise ConfigError("pool", f"{pool} was made by another Atelier: its runs start {command!r}", way_out)


def put_queues(client: SyncPrefectClient, pool: str) -> None:
    """Create the queues urgent, default and idle: a free slot goes to the first one with a waiting run."""
    there = {queue.name: queue for queue in client.read_work_queues(work_pool_name=pool)}
    for priority, name in enumerate(QUEUES, start=1):
        if name in there:
            client.update_work_queue(there[name].id, priority=priority)
        else:
            client.create_work_queue(name=name, work_pool_name=pool, priority=priority)


class DeploymentFields(TypedDict):
    """Atelier's fields of a deployment."""

    description: str
    entrypoint: str
    parameter_openapi_schema: dict[str, Json]
    enforce_parameter_schema: bool


def put_deployment(client: SyncPrefectClient, deployed: Deployed) -> str:
    """Create the flow's deployment, or update Atelier's fields of it; returns its id.

    What a user has set on its page stays: schedules, concurrency limit, tags, parameter defaults, paused
    state. So single fields are updated; Prefect's upsert would reset fields that are not sent.
    """
    ours: DeploymentFields = {
        "description": deployed.about,
        "entrypoint": f"{ENTRY}.{deployed.entry or deployed.flow}",
        "parameter_openapi_schema": dict(deployed.form),
        "enforce_parameter_schema": True,
    }
    try:
        found = client.read_deployment_by_name(f"{deployed.flow}/{deployed.name}")
    except ObjectNotFound:
        flow_id = client.create_flow_from_name(deployed.flow)
        made = client.create_deployment(
            flow_id, name=deployed.name, work_pool_name=deployed.pool, tags=[TAG], **ours
        )
        return str(made)
    update = DeploymentUpdate(**ours)
    if found.work_pool_name != deployed.pool:  # sending it again would move runs to its default queue
        update.work_pool_name = deployed.pool
    if TAG not in found.tags:
        update.tags = [*found.tags, TAG]
    client.update_deployment(found.id, update)
    return str(found.id)


def is_silence(state: State) -> bool:
    """Whether a run was ended only because of missing heartbeats."""
    return state.is_crashed() and state.message == SILENCE


def put_zombie_automation(client: SyncPrefectClient) -> None:
    """Create the automation that marks a run crashed, which frees its slot, after a minute without heartbeat.

    An equal one that exists stays: replacing it would make the server forget the runs it is waiting for.
    """
    wanted = _zombie_automation()
    there = client.read_automations_by_name(wanted.name)
    if len(there) != 1 or there[0].description != wanted.description:
        for old in there:
            client.delete_automation(old.id)
        client.create_automation(wanted)
    knock(client)


def _zombie_automation() -> AutomationCore:
    event = "prefect.flow-run"
    begun = {f"{event}.{state}" for state in BEGUN}
    trigger = EventTrigger(
        match=ResourceSpecification({"prefect.resource.id": f"{event}.*"}),
        after={HEARTBEAT, *begun},
        expect={HEARTBEAT, *begun, *(f"{event}.{state}" for state in ENDS)},
        for_each={"prefect.resource.id"},
        posture=Posture.Proactive,
        threshold=1,
        within=timedelta(seconds=DEAD_AFTER_S),
    )
    action = ChangeFlowRunState(name="Crashed", state=StateType.CRASHED, message=SILENCE, force=False)
    said = repr((sorted(trigger.after), sorted(trigger.expect), trigger.within, action.message))
    return AutomationCore(
        name="atelier: runs of dead processes",
        description="Frees the slot of a run whose process, worker or host died."
        f" ({sha256(said.encode()).hexdigest()[:8]})",
        trigger=trigger,
        actions=[action],
    )


def knock(client: SyncPrefectClient) -> None:
    """Emit a heartbeat for every active run without a recent one, so that the automation watches it: a server
    that was down, lost its database or is new watches none. Living runs continue with their own heartbeats.
    """
    since = datetime.now(UTC) - timedelta(seconds=1.5 * DEAD_AFTER_S)
    states = FlowRunFilterStateType(any_=[StateType.PENDING, StateType.RUNNING, StateType.CANCELLING])
    active = client.read_flow_runs(flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=states)))
    for run in active:
        resource = f"prefect.flow-run.{run.id}"
        if run.state and run.state.timestamp < since and not _was_heard(client, resource, since):
            emit_event(HEARTBEAT, {"prefect.resource.id": resource})


def _was_heard(client: SyncPrefectClient, resource: str, since: datetime) -> bool:
    wanted = {
        "event": {"name": [HEARTBEAT]},
        "occurred": {"since": since.isoformat()},
        "resource": {"id": [resource]},
    }
    answer = client.request("POST", "/events/filter", json={"filter": wanted, "limit": 1})
    return bool(answer.json()["events"])
