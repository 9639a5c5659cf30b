"""Interface to the part of a run at other sites; implemented by flows/sites/elsewhere.py."""

import importlib
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, cast

from atelier.engine.config.sites import Sites
from atelier.flows.run.compose import RunConfig
from atelier.flows.run.plan import Plan
from atelier.infra.dag import Node
from atelier.infra.run.context import RunContext
from atelier.infra.store.store import Store


class OtherSites(Protocol):
    """Runs the tasks at other sites."""

    def planned(self, plan: Plan) -> Plan:
        """Ask the other sites for their part of the plan, and add their rows and refusals."""
        ...

    def begin(self) -> None:
        """Order the tasks of the other sites."""

    def make(
        self, node: Node, context: RunContext, states: dict[str, str], errors: dict[str, Exception]
    ) -> None:
        """Follow a task to its end at its site. Raises AtelierError, StoppedError."""

    def fail(self, context: RunContext) -> None:
        """Stop all tasks, because one has failed."""

    def close(self) -> None:
        """Stop the tasks that still run at other sites."""

    def showing(
        self, plan: Plan, context: RunContext, states: dict[str, str]
    ) -> AbstractContextManager[None]:
        """Show the sites on the page of the running Prefect flow."""
        ...


def agents_of(sites: Sites, root: str) -> AbstractContextManager[None]:
    """Agents of all sites on this machine while the block runs, if `sites.loopback` is set."""
    if not sites.loopback:
        return nullcontext()
    module = importlib.import_module("atelier.flows.sites.loopback")
    return cast(AbstractContextManager[None], module.loopback(sites, root))


def other_sites(frozen: RunConfig, plan: Plan, store: Store, nonce: str) -> OtherSites:
    """The other sites of a run. `nonce` distinguishes this run from equal ones."""
    module = importlib.import_module("atelier.flows.sites.elsewhere")
    return cast(OtherSites, module.Elsewhere(frozen, plan, store, nonce))
