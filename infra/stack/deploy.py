"""What `atelier up` puts on a Prefect server: pools, a deployment for every flow, `work` on every pool, and
the automation that ends the runs of dead processes.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification
from prefect.exceptions import ObjectNotFound

DEPLOYMENT = "atelier"  # every flow's deployment: `titan/atelier`
WORK = "work"
DEAD_AFTER_S = 60  # two heartbeats
ENTRY = "flows.served.entry"
# A pool's jobs are Prefect's own start command in the worker's environment. Whoever may submit a run must not
# be able to choose either, so the template has no variables at all.
TEMPLATE: dict[str, Any] = {
    "job_configuration": {"stream_output": True},
    "variables": {"type": "object", "properties": {}, "additionalProperties": False},
}
QUEUES = ("urgent", "default", "idle")
ENDS = ("Completed", "Failed", "Crashed", "Cancelled", "Cancelling", "Paused", "Suspended", "AwaitingRetry")


@dataclass(frozen=True, kw_only=True)
class Deployed:
    """A flow as the server shows it; `form` is the JSON schema of its parameters."""

    flow: str
    about: str
    pool: str
    form: dict[str, Any]
    name: str = DEPLOYMENT
    entry: str = ""


def put_pool(client: SyncPrefectClient, name: str, about: str, limit: int) -> None:
    """A process pool that runs at most `limit` flows at once; an existing one is brought up to date."""
    try:
        client.read_work_pool(name)
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
    update = WorkPoolUpdate(description=about, concurrency_limit=limit, base_job_template=TEMPLATE)
    client.update_work_pool(name, update)


def put_queues(client: SyncPrefectClient, pool: str) -> None:
    """Queues urgent, default and idle: a free slot goes to the first of them that has a run."""
    there = {queue.name: queue for queue in client.read_work_queues(work_pool_name=pool)}
    for priority, name in enumerate(QUEUES, start=1):
        if name in there:
            client.update_work_queue(there[name].id, priority=priority)
        else:
            client.create_work_queue(name=name, work_pool_name=pool, priority=priority)


def put_deployment(client: SyncPrefectClient, deployed: Deployed) -> str:
    """Create or replace the flow's deployment; its id."""
    flow_id = client.create_flow_from_name(deployed.flow)
    found = client.create_deployment(
        flow_id,
        name=deployed.name,
        description=deployed.about,
        work_pool_name=deployed.pool,
        entrypoint=f"{ENTRY}.{deployed.entry or deployed.flow}",
        parameter_openapi_schema=deployed.form,
        enforce_parameter_schema=True,
        tags=["atelier"],
    )
    return str(found)


def put_zombie_automation(client: SyncPrefectClient) -> None:
    """Mark a run crashed, so that its slot is free, when its process has said nothing for a minute."""
    name = "atelier: runs of dead processes"
    event = "prefect.flow-run"
    trigger = EventTrigger(
        match=ResourceSpecification({"prefect.resource.id": f"{event}.*"}),
        after={f"{event}.heartbeat", f"{event}.Running"},
        expect={f"{event}.heartbeat", *(f"{event}.{state}" for state in ENDS)},
        for_each={"prefect.resource.id"},
        posture=Posture.Proactive,
        threshold=1,
        within=timedelta(seconds=DEAD_AFTER_S),
    )
    action = ChangeFlowRunState(
        name="Crashed",
        state=StateType.CRASHED,
        message="its process has said nothing for a minute; start the run again and it goes on",
        force=False,
    )
    for old in client.read_automations_by_name(name):
        client.delete_automation(old.id)
    client.create_automation(
        AutomationCore(
            name=name,
            description="Frees the slot of a run whose process, worker or host died.",
            trigger=trigger,
            actions=[action],
        )
    )
