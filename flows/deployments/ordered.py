"""Plan and run an order of another site (infra/sites/desk.py) with this site's store, slots and tracker. The
home site sends a configuration; this site composes it again and refuses it if the fingerprints differ.
"""

import os
import threading
import time
from typing import Any

from atelier.engine.config.base import JsonObject, parse
from atelier.engine.config.error import AtelierError, ConfigError, StoppedError
from atelier.engine.config.message import Message
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.sections import sections_of
from atelier.engine.io.addresses import NAMED, with_hosts
from atelier.flows.deployments.start import run_to_end
from atelier.flows.run.catalog import flow_names, parameters
from atelier.flows.run.compose import RunConfig, resolved
from atelier.flows.run.draw import collect_nodes
from atelier.flows.run.over_sites import linked_at, linked_sites, with_all_roles
from atelier.flows.run.plan import Plan, make_plan
from atelier.flows.run.pools import pool_of, site_of, tracker_of
from atelier.flows.run.site_rows import over_budget
from atelier.flows.sites.elsewhere import code_of
from atelier.infra.calibration.history import facts
from atelier.infra.code.provenance import version
from atelier.infra.dag import Node
from atelier.infra.run.resume_plan import Resume
from atelier.infra.sites.desk import OrderDesk, PlannedProduct, Reply, SiteOrder, TaskState
from atelier.infra.sites.files import offer
from atelier.infra.sites.order_runner import holding
from atelier.infra.sites.policy import EVERYTHING, Policies, SitePolicy
from atelier.infra.store.run_manifest import row_name
from atelier.infra.store.store import Store

SAY_EVERY = 1.0  # seconds between two replies about progress
SHOWN = ("waiting", "warning", "progress", "total", "unit", "rate", "loss")


class Replying:
    """The replies to one order; safe to use from several threads."""

    def __init__(self, desk: OrderDesk, order: SiteOrder, store: Store) -> None:
        before = desk.reply(order.id)
        self._desk, self._order, self._store = desk, order, store
        self._number = before.number if before else 0
        self._tasks = {name: TaskState() for name in order.tasks}
        kept = before.records if before else ()
        self._records: dict[str, JsonObject] = {str(one.get("fingerprint")): one for one in kept}
        self._lock, self._said = threading.Lock(), 0.0

    def on_message(self, node: str, message: Message) -> None:
        """Handle a message about a task of the run here."""
        if node not in self._tasks:
            return
        if message.get("state") in ("done", "reused"):
            self._offer(node)
        with self._lock:
            changes: dict[str, Any] = {key: value for key, value in message.items() if key in SHOWN}
            if "state" in message:
                changes["state"] = message["state"]
            self._tasks[node] = TaskState.model_validate(self._tasks[node].model_dump() | changes)
            if "state" in message or time.monotonic() - self._said > SAY_EVERY:
                self._put("running")

    def end(self, state: str, problem: str = "", **more: Any) -> None:
        with self._lock:
            self._put(state, problem, **more)

    def states(self, states: dict[str, str]) -> None:
        """Report how the tasks ended."""
        for name in (name for name, state in states.items() if state in ("done", "reused")):
            self._offer(name)
        with self._lock:
            for name, state in states.items():
                if name in self._tasks:
                    self._tasks[name] = self._tasks[name].model_copy(update={"state": state})

    def planned(self, found: dict[str, dict[str, PlannedProduct]]) -> None:
        with self._lock:
            self._tasks = {name: TaskState(planned=products) for name, products in found.items()}

    def _offer(self, name: str) -> None:
        """Prepare a finished task's files for the home site, if it needs them."""
        found = self._order.tasks[name].products.values() if name in self._order.tasks else ()
        for artifact in (each for each in found if each.is_sent):
            record = self._store.find(artifact.kind, artifact.fingerprint)
            if record is not None:
                self._records[artifact.fingerprint] = record.dump()
                address = self._store.address(artifact.kind, artifact.fingerprint)
                offer(self._desk, self._order, artifact, address, record)

    def _put(self, state: str, problem: str = "", **more: Any) -> None:
        order = self._order
        self._number, self._said = self._number + 1, time.monotonic()
        about = {"order": order.id, "home": order.home, "site": order.site, "number": self._number}
        told = {"state": state, "problem": problem[:2000], "tasks": self._tasks}
        told |= {"records": tuple(self._records.values())}
        self._desk.put(Reply.model_validate(about | told | more))


def work_on(desk: OrderDesk, order: SiteOrder, policies: Policies, mailbox: str, store: Store) -> int:
    """Carry out an order, as far as this site's policy for its home allows. Returns the exit code. This
    process and its ranks get the environment of the site of the policy's pool, as a worker of that pool has
    it.
    """
    policy = policies.of(order.home)
    with holding(desk, order.id):
        replying = Replying(desk, order, store)
        try:
            if refusal := policy.refusal(order):
                raise ConfigError("policy", refusal)
            frozen = frozen_of(order, policy, mailbox, store)
            os.environ |= site_of(frozen.pool).environment() | {
                "ATELIER_ROOT": store.root,  # the agent's store
                NAMED: with_hosts(os.environ.get(NAMED, ""), policy.reads),  # home chose the addresses
            }
            nodes = collect_nodes(frozen, store)
            check_tasks(order, nodes)
            check_inputs(order, nodes, policy, store)
            check_linked(order, nodes, policies)
            return (
                _plan(order, policies, frozen, store, replying)
                if order.act == "plan"
                else _run(order, frozen, store, replying)
            )
        except StoppedError as error:
            replying.end("stopped", str(error))
        except AtelierError as error:
            replying.end("refused" if isinstance(error, ConfigError) else "failed", str(error))
        except Exception as error:
            replying.end("failed", f"{type(error).__name__}: {error}")
            raise
    return 1


def frozen_of(order: SiteOrder, policy: SitePolicy, mailbox: str, store: Store) -> RunConfig:
    """The order's configuration at this site. Raises ConfigError for another version, an unknown flow and an
    invalid configuration.
    """
    if order.version != version():
        raise ConfigError("version", f"{order.home} has {order.version}, {order.site} has {version()}")
    if order.flow not in flow_names():
        raise ConfigError("flow", f"{order.site} has no flow {order.flow!r}")
    document = linked_at(order.document, order.site, mailbox)
    if "parallel" in document:
        document["parallel"] = (order.parallel or Parallel()).model_dump(mode="json")
    pool = facts(store.root, pool_of(policy.pool))
    if order.parallel is not None and order.parallel.device == "cuda" and pool.is_cpu:
        raise ConfigError(f"sites.parallel.{order.site}", f"cuda, but {order.home} gets CPUs at {order.site}")
    arguments = with_all_roles(resolved(parse(parameters(order.flow), document, ""), pool))
    return RunConfig(
        flow=order.flow,
        overrides=(),
        document=arguments.model_dump(mode="json"),
        arguments=arguments,
        pool=pool,
        tracker=tracker_of(policy.tracker),
        resume=Resume(accept_code=order.accept_code),
        ordered=frozenset(order.tasks),
    )


def check_tasks(order: SiteOrder, nodes: list[Node]) -> None:
    """Raises ConfigError if a task differs from home's, with the values of both sites."""
    here = {node.name: node for node in nodes}
    for name, task in order.tasks.items():
        node = here.get(name)
        if node is None or node.task != task.task:
            raise ConfigError(name, f"{order.site} has no such task in {order.flow}")
        if node.products.keys() != task.products.keys():
            raise ConfigError(
                name, f"makes {', '.join(node.products)} at {order.site}, not the requested artifacts"
            )
        for key, product in task.products.items():
            made = node.products.get(key)
            if made is None or (made.kind, made.fingerprint) != (product.kind, product.fingerprint):
                raise ConfigError(
                    row_name(node, key),
                    f"is {product.kind} {product.fingerprint[:8]} at {order.home}, but"
                    f" {made.fingerprint[:8] if made else 'nothing'} at {order.site}",
                    "use the same text and the same versions of all packages at both",
                )
        if code_of(node) != task.code:
            raise ConfigError(
                name,
                f"the code that makes it has digest {task.code[:8]} at {order.home}, {code_of(node)[:8]} at"
                f" {order.site}",
                "install the same code at both",
            )


def check_inputs(order: SiteOrder, nodes: list[Node], policy: SitePolicy, store: Store) -> None:
    """Raises ConfigError for a local artifact that the policy does not let the tasks use."""
    made = {(product.kind, product.fingerprint) for node in nodes for product in node.products.values()}
    for node in nodes:
        for role, (kind, digest) in node.inputs.items():
            if (kind, digest) in made:
                continue
            record = store.find(kind, digest)
            if record is None:
                raise ConfigError(f"{node.name}.{role}", f"{order.site} has no {kind} {digest[:8]}")
            if not {EVERYTHING, record.name} & {*policy.uses}:
                raise ConfigError(
                    f"{node.name}.{role}",
                    f"{order.site} does not let {order.home} use its {kind} {record.name} (it may use:"
                    f" {', '.join(policy.uses) or 'none'})",
                    f"at {order.site}: atelier site allow {order.home} --use"
                    f" {','.join((*policy.uses, record.name))}",
                )


def check_linked(order: SiteOrder, nodes: list[Node], policies: Policies) -> None:
    """Raises ConfigError for a training without this site, or one that would send results to a site which may
    not have trainings here.
    """
    for node in nodes:
        linked = linked_sites(node)
        place = f"{node.name}: {node.training.section}.link" if linked else ""
        if linked and order.site not in linked:
            raise ConfigError(place, f"{order.site} is not one of its sites")
        values = sections_of(node.training.train).values() if linked else ()
        for site in (site for value in values for site in value.places):
            if site not in (order.site, order.home) and not policies.of(site).runs(node.task):
                raise ConfigError(place, f"{order.site} runs no task {node.task!r} with {site}")


def _plan(order: SiteOrder, policies: Policies, frozen: RunConfig, store: Store, replying: Replying) -> int:
    plan = make_plan(frozen, store)
    replying.planned(planned_products(plan))
    sites = {site for row in plan.links for site in row["sites"]} - {order.site}
    hourly = {site: policies.of(site).hourly for site in sites}
    refusals = [*plan.refusals, *over_budget(plan.links, order.site, hourly)]
    replying.end("refused" if refusals else "finished", "; ".join(refusals), notes=tuple(plan.notes))
    return 0


def planned_products(plan: Plan) -> dict[str, dict[str, PlannedProduct]]:
    rows = {row["name"]: row for row in plan.rows}
    fields = PlannedProduct.model_fields
    return {
        node.name: {
            key: PlannedProduct.model_validate(
                {name: value for name, value in rows[row_name(node, key)].items() if name in fields and value}
            )
            for key in node.products
        }
        for node in plan.nodes
    }


def _run(order: SiteOrder, frozen: RunConfig, store: Store, replying: Replying) -> int:
    outcome = run_to_end(
        frozen, store, f"order {order.id[:8]} of site {order.home}", listener=replying.on_message
    )
    replying.states(outcome.states)
    if outcome.failure is not None:
        replying.end("stopped" if outcome.is_stopped else "failed", f"{outcome.failed}: {outcome.failure}")
        return 1
    replying.end("finished")
    return 0
