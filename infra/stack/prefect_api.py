"""Calls to a Prefect server: check server and pools, submit, read and cancel runs, write artifacts."""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from uuid import UUID

import httpx
import prefect
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import ArtifactCreate
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun, WorkerStatus
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.settings import PREFECT_API_URL, PREFECT_UI_URL
from prefect.states import Cancelling

from atelier.engine.config.base import JsonObject
from atelier.engine.config.error import ConfigError
from atelier.infra.stack.prefect_results import refuse_results
from atelier.infra.stack.service import check_proxies

refuse_results()  # of every process that reads runs

SEEN_S = 90  # a worker without a heartbeat for longer counts as offline
AWAY = (httpx.TransportError, OSError)


@contextmanager
def server() -> Iterator[SyncPrefectClient]:
    """A client of the configured server. Raises ConfigError when it is unreachable, refuses the credential,
    is no Prefect server or another version.
    """
    url = PREFECT_API_URL.value() or ""
    if not url:
        raise ConfigError("PREFECT_API_URL", "no Prefect server is running", "atelier up starts one")
    with _answering(url, "atelier up starts one") as client:
        _check(client, url)
        yield client


def check_answers() -> None:
    """Raises ConfigError if the server that a user configured is unreachable, fails, or refuses the
    credential. A server that is only in a Prefect profile is not checked.
    """
    if not (url := os.environ.get("PREFECT_API_URL", "")):
        return
    way_out = "start it, or unset it: a run then starts its own"
    try:
        with _answering(url, way_out) as client:
            client.request("GET", "/admin/version")
    except PrefectHTTPStatusError as error:
        if not is_away(error):
            raise
        status = error.response.status_code
        raise ConfigError("PREFECT_API_URL", f"{url} answers with status {status}", way_out) from None


@contextmanager
def _answering(url: str, way_out: str) -> Iterator[SyncPrefectClient]:
    check_proxies()
    try:
        with get_client(sync_client=True) as client:
            yield client
    except AWAY as error:
        raise ConfigError(
            "PREFECT_API_URL", f"no Prefect server answers at {url} ({error})", way_out
        ) from None
    except PrefectHTTPStatusError as error:
        if error.response.status_code in (401, 403):
            raise _locked(url) from None
        raise


def _check(client: SyncPrefectClient, url: str) -> None:
    theirs = None
    try:
        theirs = client.request("GET", "/admin/version").json()
    except ValueError:
        pass  # a page, not an answer
    except PrefectHTTPStatusError as error:
        if error.response.status_code != 404:
            raise
    if not isinstance(theirs, str):
        raise ConfigError("PREFECT_API_URL", f"{url} is not a Prefect server", "atelier up starts one")
    if theirs != prefect.__version__:
        raise ConfigError(
            "PREFECT_API_URL",
            f"{url} is Prefect {theirs[:40]}, this is {prefect.__version__}",
            "use the same version on both sides (constraints.txt names it)",
        )


def _locked(url: str) -> ConfigError:
    return ConfigError(
        "PREFECT_API_AUTH_STRING",
        f"{url} does not accept the user and password",
        "`atelier status --env` prints those of the stack that `atelier up` started",
    )


def check_pool_exists(client: SyncPrefectClient, pool: str) -> None:
    """Raises ConfigError for a pool that the server does not have."""
    try:
        client.read_work_pool(pool)
    except ObjectNotFound:
        there = ", ".join(sorted(p.name for p in client.read_work_pools())) or "none"
        way_out = f"there are: {there}; `atelier up` creates those of conf/pool"
        raise ConfigError("pool", f"the server has no pool {pool!r}", way_out) from None


def check_pool(client: SyncPrefectClient, pool: str) -> None:
    """Raises ConfigError for a pool that the server does not have or that no worker serves."""
    check_pool_exists(client, pool)
    if not workers(client, pool):
        raise ConfigError("pool", f"no worker serves the pool {pool!r}", f"start one: atelier worker {pool}")


def workers(client: SyncPrefectClient, pool: str) -> list[str]:
    """Names of the workers that currently serve `pool`."""
    since = datetime.now(UTC) - timedelta(seconds=SEEN_S)
    return [
        worker.name
        for worker in client.read_workers_for_work_pool(pool)
        if worker.status == WorkerStatus.ONLINE
        and worker.last_heartbeat_time is not None
        and worker.last_heartbeat_time >= since
    ]


def submit(
    deployment: str, parameters: JsonObject, *, key: str | None = None, tags: Iterable[str] = ()
) -> str:
    """Create a run of a deployment without a parent run; returns its id. `key` is an idempotency key: the
    same one starts only one run.
    """
    with server() as client:
        found = client.read_deployment_by_name(deployment)
        run = client.create_flow_run_from_deployment(
            found.id, parameters=dict(parameters), idempotency_key=key, tags=["atelier", *tags]
        )
        return str(run.id)


def is_away(error: Exception) -> bool:
    """Whether a retry may succeed: the server does not answer, or answers with a 5xx status."""
    if isinstance(error, PrefectHTTPStatusError):
        return error.response.status_code >= 500
    return isinstance(error, AWAY)


def read_run(run_id: str) -> FlowRun | None:
    """Read a run; None while the server does not answer."""
    try:
        with get_client(sync_client=True) as client:
            return client.read_flow_run(UUID(run_id))
    except (*AWAY, PrefectHTTPStatusError) as error:
        if is_away(error):
            return None
        raise


def cancel(run_id: str, why: str, patience_s: float = 10.0) -> None:
    """Cancel a run; an unreachable server is retried for `patience_s`, then ignored."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            with get_client(sync_client=True) as client:
                client.set_flow_run_state(UUID(run_id), Cancelling(message=why))
                return
        except (*AWAY, PrefectHTTPStatusError):
            if time.monotonic() > deadline:
                return
            time.sleep(1.0)


def put_markdown(key: str, markdown: str, about: str) -> str:
    """Create a Prefect markdown artifact, or a new version of the same key; returns its address."""
    artifact = ArtifactCreate(key=key, type="markdown", data=markdown, description=about)
    with server() as client:
        client.create_artifact(artifact)
    return f"{_pages()}/v2/artifacts/key/{key}"


def artifacts(run_id: UUID) -> dict[str, str]:
    """Key -> address of each artifact on the page of a flow run."""
    with server() as client:
        found = client.read_artifacts(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run_id])))
    return {str(one.key): f"{_pages()}/v2/artifacts/artifact/{one.id}" for one in found if one.key}


def page(run_id: str) -> str:
    """URL of a run's page in Prefect's UI."""
    return f"{_pages()}/v2/runs/flow-run/{run_id}"


def _pages() -> str:
    """The server's URL for browsers; a worker may reach it by another name."""
    return (PREFECT_UI_URL.value() or PREFECT_API_URL.value() or "").removesuffix("/api").rstrip("/")
