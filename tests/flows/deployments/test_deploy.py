"""Settings made on the pages of a Prefect server survive a new deployment; processes of cancelled runs."""

import runpy
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import prefect
import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentUpdate, WorkPoolUpdate
from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings
from prefect.states import Cancelling, Pending

from atelier.engine.config.error import ConfigError
from atelier.infra.stack import flow_process
from atelier.infra.stack.deployments import (
    TEMPLATE,
    Deployed,
    check_command,
    put_deployment,
    put_pool,
    put_queues,
)
from tests.prefect_server import started

FORM: dict[str, Any] = {"type": "object", "properties": {"steps": {"type": "integer"}}}
POOL = "light"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyncPrefectClient]:
    """Of a real server with a database of its own."""
    server = started(tmp_path_factory.mktemp("prefect"))
    settings = {PREFECT_API_URL: server.url, PREFECT_API_AUTH_STRING: server.login}
    with temporary_settings(settings), get_client(sync_client=True) as there:
        yield there
    server.close()


def deploy(client: SyncPrefectClient, *, steps: int, limit: int = 2) -> str:
    """What `atelier up` and the compose file do, for one flow whose form has a field of so many steps."""
    put_pool(client, POOL, "gangs", limit)
    put_queues(client, POOL)
    form = {"type": "object", "properties": {f"steps_{steps}": {"type": "integer"}}}
    return put_deployment(client, Deployed(flow="titan", about=f"{steps} steps", pool=POOL, form=form))


def test_what_a_person_set_on_a_deployment_stays_and_the_form_is_the_new_one(
    client: SyncPrefectClient,
) -> None:
    there = client.read_deployment(deploy(client, steps=1))
    assert (there.tags, there.schedules, there.work_queue_name) == (["atelier"], [], "default")
    cron, every = CronSchedule(cron="0 3 * * *"), IntervalSchedule(interval=timedelta(hours=7))
    client.create_deployment_schedules(there.id, [(cron, True), (every, False)])
    client.update_deployment(
        there.id,
        DeploymentUpdate(
            tags=["mine"], paused=True, concurrency_limit=3, parameters={"steps_1": 5}, work_queue_name="idle"
        ),
    )
    before = client.read_deployment(there.id)
    assert before.work_queue_name == "idle" and len(before.schedules) == 2

    for steps in (2, 3):
        assert deploy(client, steps=steps) == str(there.id)
    after = client.read_deployment(there.id)
    assert after.schedules == before.schedules
    assert after.global_concurrency_limit is not None and after.global_concurrency_limit.limit == 3
    assert (after.paused, after.parameters, after.work_queue_name) == (True, {"steps_1": 5}, "idle")
    assert sorted(after.tags) == ["atelier", "mine"]
    assert (after.description, after.enforce_parameter_schema) == ("3 steps", True)
    assert list((after.parameter_openapi_schema or {})["properties"]) == ["steps_3"]


def test_a_limit_that_a_person_gave_a_pool_stays_until_the_pool_s_own_is_another(
    client: SyncPrefectClient,
) -> None:
    deploy(client, steps=1, limit=2)
    client.update_work_pool(POOL, WorkPoolUpdate(concurrency_limit=1, is_paused=True))
    deploy(client, steps=1, limit=2)
    pool = client.read_work_pool(POOL)
    assert (pool.concurrency_limit, pool.is_paused) == (1, True)
    deploy(client, steps=1, limit=4)
    assert client.read_work_pool(POOL).concurrency_limit == 4


def test_a_pool_whose_runs_another_atelier_would_start_is_not_served(client: SyncPrefectClient) -> None:
    deploy(client, steps=5)
    check_command(client, POOL)
    command = {"command": "python -m infra.stack.flow_process"}
    old = TEMPLATE | {"job_configuration": TEMPLATE["job_configuration"] | command}
    client.update_work_pool(POOL, WorkPoolUpdate(base_job_template=old))
    with pytest.raises(ConfigError, match=r"python -m infra\.stack\.flow_process.*`atelier up`"):
        check_command(client, POOL)
    deploy(client, steps=5)
    check_command(client, POOL)


@pytest.fixture
def run(client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch) -> UUID:
    """A run whose process is about to start."""
    made = client.create_flow_run(prefect.flow(name="some")(lambda: None), state=Pending())
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", str(made.id))
    monkeypatch.setattr(runpy, "run_module", lambda *_, **__: sys.exit(1))  # as the engine that may not begin
    return made.id


def test_a_run_that_is_cancelled_before_its_process_begins_is_cancelled_by_that(
    client: SyncPrefectClient, run: UUID
) -> None:
    client.set_flow_run_state(run, Cancelling())
    flow_process.main()
    state = client.read_flow_run(run).state
    assert state is not None and (state.type, state.message) == ("CANCELLED", "cancelled before it began")
    flow_process.main()  # cancelled is cancelled


def test_a_run_that_nobody_cancelled_fails_as_its_engine_does(client: SyncPrefectClient, run: UUID) -> None:
    with pytest.raises(SystemExit):
        flow_process.main()
    state = client.read_flow_run(run).state
    assert state is not None and state.type == "PENDING"
