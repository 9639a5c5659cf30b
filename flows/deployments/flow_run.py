"""Run a flow that was started from a form, by `pool=` on the command line, or by a sweep. Its parent run on
the light pool plans, runs the nodes on pools and shows their progress.
"""

import shlex
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from uuid import UUID

from coolname.data import config  # Prefect draws unnamed runs' names from these words
from prefect import get_run_logger
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Failed

from atelier.engine.config.base import JsonObject
from atelier.engine.config.error import AtelierError, ConfigError
from atelier.engine.config.role import Role
from atelier.flows.deployments.cancellation import present
from atelier.flows.deployments.forms import to_overrides
from atelier.flows.deployments.overview_page import OverviewPage
from atelier.flows.deployments.submit_task import TaskSubmitter
from atelier.flows.run.compose import RunConfig, compose
from atelier.flows.run.execute import Host, run_flow
from atelier.flows.run.outcome import RunOutcome
from atelier.flows.run.plan import Plan, make_plan
from atelier.flows.run.pools import POOL_WHEN_BLANK
from atelier.flows.run.queued_runs import stored_id
from atelier.flows.run.sweep_ledger import Ledger, PointEntry
from atelier.flows.run.sweep_point import with_companions
from atelier.infra.code.frozen import freeze
from atelier.infra.run.context import RunContext
from atelier.infra.stack.prefect_api import page
from atelier.infra.store.store import Store, default_root

PAGE = (  # first words of the names that Prefect's page suggests; an animal follows
    *("Awesome", "Rustic", "Small", "Gorgeous", "Fantastic", "Sleek", "Intelligent", "Unbranded", "Refined"),
    *("Licensed", "Generic", "Practical", "Ergonomic", "Handcrafted", "Tasty", "Handmade", "Incredible"),
)
LONGEST_ANIMAL = 6  # letters
LONGEST = 2000  # characters of an error, which may quote the user's input


def run(flow: str, parameters: JsonObject) -> State:
    """Run `flow` with a filled form. Returns the final state of its Prefect run."""
    sweep, _, number = str(parameters.get("sweep") or "").partition("/")

    def asked(store: Store) -> RunConfig:
        frozen = frozen_of(flow, parameters)
        return in_sweep(frozen, Ledger(store, sweep).entry(int(number))) if sweep else frozen

    return carried_out(asked, str(parameters.get("code") or ""), sweep)


def carried_out(asked: Callable[[Store], RunConfig], code: str, sweep: str = "") -> State:
    """Plan and run what was `asked` for, with the frozen code of that digest. Returns the final state."""
    log = get_run_logger()
    try:
        store = Store(default_root())
        frozen = asked(store)
        plan = make_plan(frozen, store)
        plan.check()
    except AtelierError as error:
        text = str(error)[:LONGEST]
        log.error(text)
        return Failed(message=text)
    if is_generated(str(flow_run.name or "")):
        with suppress(Exception), get_client(sync_client=True) as client:  # the name is only for display
            client.set_flow_run_name(UUID(str(flow_run.id)), frozen.title(run_id_of()))
    command = shlex.join(["atelier", frozen.flow, *frozen.overrides])
    log.info("%s   store %s", command, store.root)
    outcome = _run(frozen, plan, store, command, code, sweep)
    for text in outcome.untracked:
        log.warning("%s", text)
    return _state(outcome)


def frozen_of(flow: str, parameters: JsonObject) -> RunConfig:
    """The configuration of a filled form, equal to that of the same words on a command line."""
    words = to_overrides(flow, parameters)
    frozen = compose(flow, words, from_form=True)
    frozen.check_runs()
    if frozen.pool.is_served:
        return frozen
    return compose(flow, [*words, f"pool={POOL_WHEN_BLANK}"], from_form=True)


def in_sweep(frozen: RunConfig, entry: PointEntry) -> RunConfig:
    """The configuration with the companion students of other points of its sweep. Raises ConfigError when the
    words differ from the point's.
    """
    if list(frozen.overrides) != entry.words:
        raise ConfigError("sweep", f"its point {entry.number} has other overrides", "leave the box blank")
    roles = {name: Role.model_validate(document) for name, document in entry.companions.items()}
    return with_companions(frozen, roles)


def _run(frozen: RunConfig, plan: Plan, store: Store, command: str, code: str, sweep: str) -> RunOutcome:
    run_id = run_id_of()
    with OverviewPage(store.root, run_id, plan) as overview_page:
        submitter = TaskSubmitter(frozen, command, code or freeze(store.root), overview_page)

        def host(
            frozen: RunConfig, context: RunContext, outcome: RunOutcome, inside: Callable[[], None]
        ) -> None:
            context.links["prefect.url"] = page(str(flow_run.id))
            overview_page.follow(outcome, context)
            with present(context.stop):
                inside()

        there: Host = host
        on_message, make = overview_page.on_message, submitter.make
        return run_flow(
            frozen, plan, store, command, on_message, sweep=sweep, run_id=run_id, host=there, make=make
        )


def run_id_of() -> str:
    """The run's id in store and MLflow; a retry keeps it."""
    return stored_id(flow_run.id, flow_run.scheduled_start_time)


def _state(outcome: RunOutcome) -> State:
    if outcome.failure is None:
        made = len(outcome.nodes) - len(outcome.reused)
        return Completed(message=f"{made} tasks run, {len(outcome.reused)} reused")
    text = f"{outcome.failed + ': ' if outcome.failed else ''}{outcome.failure}"
    if outcome.is_stopped:
        return Cancelled(message=f"{text}; run it again to continue from the last checkpoints")
    return Failed(message=text)


def is_generated(name: str) -> bool:
    """True for a name of two random words, from Prefect's client or its page. A name that a person chose is
    kept.
    """
    first, _, second = name.partition("-")
    if first in PAGE:
        return 0 < len(second) <= LONGEST_ANIMAL and second.replace(" ", "").isalpha()
    return bool(second) and first in _words() and second in _words()


@cache
def _words() -> frozenset[str]:
    """All single words of the generator's lists."""
    lists = (one.get("words", ()) for one in config.values() if one.get("type") == "words")
    return frozenset(str(word) for words in lists for word in words)
