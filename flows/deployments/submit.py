"""`atelier <flow> pool=<name>`: submit the run to the Prefect server, follow it, cancel it on Ctrl-C."""

import shlex
import time
from collections.abc import Callable

from prefect.client.schemas.objects import FlowRun

from atelier.engine.config.base import Json
from atelier.engine.config.error import AtelierError, ConfigError, StoppedError
from atelier.flows.deployments.cancellation import end_of
from atelier.flows.deployments.live import left_s, read_live
from atelier.flows.deployments.overview_page import amount_text, time_text
from atelier.flows.deployments.rerun_form import RERUN
from atelier.flows.run.catalog import settings_folders
from atelier.flows.run.compose import RunConfig, run_of
from atelier.flows.run.overrides import check_overrides
from atelier.infra.code.frozen import freeze
from atelier.infra.stack import prefect_api
from atelier.infra.stack.deployments import DEPLOYMENT
from atelier.infra.stack.stack import LIGHT
from atelier.infra.store.store import Store

POLL_S = 1.0
EVERY_S = 5.0
AWAY_S = 600.0


def submit(frozen: RunConfig, store: Store, say: Callable[[str], None]) -> str:
    """Start the run on the server with the present code. Returns its id.

    Raises ConfigError when no server answers, the pool is unknown or no worker serves it.
    """
    parameters: dict[str, Json] = {"overrides": list(frozen.overrides), "code": ready(frozen, store)}
    deployed = frozen.flow
    if frozen.rerun is not None:  # the server's run names the past one, and composes the same
        deployed, about = RERUN, frozen.rerun
        parameters |= {"run": about.run, "from_task": about.from_task, "overrides": list(about.words)}
    run_id = prefect_api.submit(f"{deployed}/{DEPLOYMENT}", parameters)
    say(f"submitted: {prefect_api.page(run_id)}")
    return run_id


def ready(frozen: RunConfig, store: Store) -> str:
    """Freeze the code for runs of this configuration. Returns its digest. Raises ConfigError if they cannot
    run.
    """
    check_overrides(list(frozen.overrides), from_form=True)
    if settings_folders():
        problem = f"{settings_folders()[0]} is read here only, and a worker composes the run again"
        raise ConfigError(
            "--config-dir", problem, "put its files into conf/ of a project (`atelier new project`)"
        )
    with prefect_api.server() as client:
        served = [name for pool in frozen.pools for name in pool.members or (pool.name,)]
        for name in dict.fromkeys((LIGHT, *served)):
            prefect_api.check_pool(client, name)
    return freeze(store.root)


def follow(run_id: str, frozen: RunConfig, store: Store, say: Callable[[str], None]) -> None:
    """Print the run's progress until it ends; Ctrl-C cancels it. Raises StoppedError if it was stopped,
    AtelierError if it failed.
    """
    try:
        run = _until_end(run_id, store, say)
    except KeyboardInterrupt:
        say("stopping: running tasks write a checkpoint")
        prefect_api.cancel(run_id, "its command was stopped")
        _until_end(run_id, store, say)
        raise StoppedError("stopped") from None
    state = run.state
    assert state is not None  # it is final
    if state.is_completed():
        return
    if state.is_cancelled():
        raise StoppedError(state.message or "cancelled")
    again = "" if state.is_failed() else f"; again: atelier {frozen.flow} {shlex.join(frozen.overrides)}"
    raise AtelierError(f"{state.message or state.name}{again}")


def _until_end(run_id: str, store: Store, say: Callable[[str], None]) -> FlowRun:
    seen, said_at, heard_at = "", 0.0, time.monotonic()
    silent_since: dict[str, float] = {}
    while True:
        run = prefect_api.read_run(run_id)
        if run is None and time.monotonic() - heard_at > AWAY_S:
            raise ConfigError(
                "PREFECT_API_URL", "the server is gone", f"the run continues: {prefect_api.page(run_id)}"
            )
        if run is not None and run.state is not None:
            heard_at = time.monotonic()
            if run.state.name != seen:
                seen = str(run.state.name)
                say(f"{seen.lower()}  {run.state.message or ''}".rstrip())
            if end_of(run, silent_since) is not None:
                return run
            if time.monotonic() - said_at >= EVERY_S and run.name:
                said_at = time.monotonic()
                _say_live(store, run, say)
        time.sleep(POLL_S)


def _say_live(store: Store, run: FlowRun, say: Callable[[str], None]) -> None:
    for node, now in sorted(
        read_live(store.root, run_of(str(run.name))).items()
    ):  # the parent sets its title
        if "total" in now and now.get("state") == "running":
            left = time_text(left_s(now))
            say(f"  {node}: {amount_text(now)}, {left} left")
