"""Run tasks at other sites: write orders (infra/sites/desk.py), which agents send, and follow the replies."""

import sys
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import IO, cast

from atelier.engine.config.base import JsonObject, fingerprint
from atelier.engine.config.error import AtelierError, ConfigError, StoppedError, of_system, printable
from atelier.engine.config.message import Message
from atelier.engine.io.storage import local_path
from atelier.flows.run.auto import vocab_of
from atelier.flows.run.compose import RunConfig
from atelier.flows.run.over_sites import linked_at
from atelier.flows.run.plan import Plan
from atelier.flows.run.plan_document import PlanRow
from atelier.flows.run.site_rows import over_budget
from atelier.flows.sites.left_alone import left_alone
from atelier.flows.sites.sites_page import showing_sites
from atelier.infra.code.code_map import maps_of
from atelier.infra.code.provenance import version
from atelier.infra.dag import Node, Product
from atelier.infra.run.context import RunContext
from atelier.infra.sites.desk import (
    Cancellation,
    OrderDesk,
    OrderedProduct,
    OrderedTask,
    Reply,
    SiteOrder,
    TaskState,
)
from atelier.infra.sites.files import sent, take_in
from atelier.infra.sites.peer_problems import PeerProblems
from atelier.infra.store.file_lock import file_lock
from atelier.infra.store.run_manifest import row_name
from atelier.infra.store.store import Store

LOOK_EVERY = 0.2  # seconds
PATIENCE_S = 60.0  # for the first reply to an order
SAID_S, KEPT_S = (
    2.0,
    8.0,
)  # of silence until a notice; the longer one if this site's agent has a problem: it may have just started
PLANNING_S = 600.0  # for the next reply to a plan
AGAIN_S = 600.0  # between two notices of a wait for files
STOPPING_S = 120.0  # for the last reply to a cancelled order
DONE = ("done", "reused")
OWNER = "home.lock"  # of an order: held by the run that wrote it


class Elsewhere:
    """Runs the tasks of a run that are at other sites."""

    def __init__(self, frozen: RunConfig, plan: Plan, store: Store, nonce: str) -> None:
        assert frozen.here is not None  # there are sites
        self._frozen, self._there, self._nonce, self._store = frozen, plan.there, nonce, store
        self._needed = {needed for node in plan.nodes for needed in node.inputs.values()} - {
            (product.kind, product.fingerprint) for node in plan.nodes for product in node.products.values()
        }
        self._here, self._desk = frozen.here, OrderDesk(frozen.here.mailbox)
        self._problems = PeerProblems(frozen.here.mailbox)
        self._orders: dict[str, SiteOrder] = {}
        self._owned: list[IO[str]] = []
        self._lock = threading.Lock()

    # the plan

    def planned(self, plan: Plan) -> Plan:
        """The plan with the replies of the other sites; a missing reply is a refusal. Raises ConfigError for
        --fresh, which orders do not have.
        """
        if self._frozen.resume.fresh:
            raise ConfigError("--fresh", "is for runs at one site", "use it separately at each site")
        orders: dict[str, SiteOrder] = {}
        try:
            for site in self._there:
                order = self._order(site, "plan", f"{self._nonce} {time.time_ns()}")
                self._desk.put(order)
                orders[site] = order
            return self._replied(plan, orders)
        finally:
            self._end(orders.values())

    def _replied(self, plan: Plan, orders: Mapping[str, SiteOrder]) -> Plan:
        rows, refusals, notes = [*plan.rows], [*plan.refusals], [*plan.notes]
        replies = {site: _Heard() for site in orders}
        for site, order in orders.items():
            heard = replies[site]
            while not ((reply := self._desk.reply(order.id)) and reply.is_last):
                heard.is_new(reply)
                self._say_waiting(site, heard)
                if heard.silence > (PLANNING_S if heard.number else PATIENCE_S):
                    break
                time.sleep(LOOK_EVERY)
            if reply is not None and not reply.is_last:
                refusals.append(
                    f"{site} has not replied for {PLANNING_S:.0f} s after '{reply.problem or reply.state}';"
                    " is its agent still there?"
                )
                continue
            if reply is None:
                refusals.append(f"{site} has not answered for {PATIENCE_S:.0f} s: {self._what_keeps(site)}")
                continue
            rows += self._rows(site, reply)
            refusals += [f"{site}: {reply.problem}"] if reply.state != "finished" else []
            notes += [f"{site}: {note}" for note in reply.notes]
        if not refusals:
            nodes = (*plan.nodes, *(node for theirs in self._there.values() for node in theirs))
            refusals += left_alone(nodes, rows, self._here)
        plan = plan.with_rows(rows, vocab_of(self._frozen.arguments))
        refusals += over_budget(plan.links, self._here.name, self._here.hourly)
        return replace(plan, refusals=refusals, notes=notes)

    def _say_waiting(self, site: str, heard: "_Heard") -> None:
        """Print, once for each reason, that the plan waits for a site, and why."""
        problem = self._problems.of(site)
        if heard.number or heard.silence < (SAID_S if problem == "" else KEPT_S):
            return
        text = f"waiting for {site} to plan its part: {self._what_keeps(site)}"
        if text not in heard.said:
            heard.said.add(text)
            print(printable(text, 0), file=sys.stderr, flush=True)

    def _what_keeps(self, site: str) -> str:
        """Why a site does not answer, as far as this site's agent knows: text for a notice or error."""
        problem = self._problems.of(site)
        if problem is None:
            return "no agent runs here; atelier site serve"
        return problem or f"the agent here is well; is `atelier site serve` running at {site}?"

    def _rows(self, site: str, reply: Reply) -> list[PlanRow]:
        found: list[PlanRow] = []
        for node in self._there[site]:
            told = reply.tasks.get(node.given_name)
            for key, product in node.products.items():
                row = blank_row(node, key, product.kind, product.fingerprint)
                if told is not None and key in told.planned:
                    row = cast(PlanRow, {**row, **told.planned[key].model_dump(mode="json")})
                found.append(row)
        return found

    def _order(self, site: str, act: str, nonce: str) -> SiteOrder:
        frozen, document = self._frozen, linked_at(self._frozen.document, "", "")
        tasks = {
            node.given_name: OrderedTask(
                task=node.task,
                products={
                    key: OrderedProduct(
                        kind=product.kind, fingerprint=product.fingerprint, is_sent=self._lacks(product)
                    )
                    for key, product in node.products.items()
                },
                code=code_of(node),
            )
            for node in self._there[site]
        }
        return SiteOrder.of(
            nonce=nonce, act=act, home=self._here.name, site=site, flow=frozen.flow, document=document,
            parallel=frozen.layout_at(site), tasks=tasks, version=version(),
            accept_code=frozen.resume.accept_code,
        )  # fmt: skip

    def _lacks(self, product: Product) -> bool:
        """Whether a task here needs a product that this store lacks."""
        is_needed = (product.kind, product.fingerprint) in self._needed
        return is_needed and self._store.find(product.kind, product.fingerprint) is None

    # the run

    def begin(self) -> None:
        """Order the tasks of all sites. An equal order of a run that has died is taken over."""
        for site in self._there:
            order = self._order(site, "run", self._nonce)
            for one in self._desk.orders():
                if self._is_open(one, order) and self._own(one):
                    order = one
                    break
            self._desk.put(order)
            self._orders[site] = order
            self._own(order)

    def _own(self, order: SiteOrder) -> bool:
        """Lock an order for the life of this process; False if another run has it."""
        file = file_lock(local_path(self._desk.folder(order.id)) / OWNER)
        if file is not None:
            self._owned.append(file)
        return file is not None

    def _is_open(self, one: SiteOrder, order: SiteOrder) -> bool:
        is_equal = one.model_copy(update={"id": order.id}) == order
        return is_equal and not self._desk.is_cancelled(one.id) and not self._desk.is_over(one.id)

    def make(
        self, node: Node, context: RunContext, states: dict[str, str], errors: dict[str, Exception]
    ) -> None:
        """Follow the node to its end at its site, and record its state and error under its name. An error
        stops this site's tasks, which may wait for it. Raises AtelierError, StoppedError.
        """
        states[node.name] = "running"
        handle = context.tracker.start_task(node, False)
        try:
            state = self._follow(node, context)
            self._take_files(node, context)
            states[node.name] = state
            context.tracker.end_task(handle, "FINISHED")
        except Exception as problem:
            error = problem if isinstance(problem, AtelierError) else told(problem)
            errors[node.name] = error
            is_stop = isinstance(error, StoppedError)
            states[node.name] = "stopped" if is_stop else "failed"
            context.tracker.end_task(handle, "KILLED" if is_stop else "FAILED")
            self.fail(context)
            raise error from problem.__cause__
        finally:
            context.say(node, state=states[node.name], detail=f"at {node.site}")

    def showing(
        self, plan: Plan, context: RunContext, states: dict[str, str]
    ) -> AbstractContextManager[None]:
        """Show the sites on the page of the running Prefect flow."""
        return showing_sites(plan, context, states)

    def fail(self, context: RunContext) -> None:
        """After a task has failed, end all others, which may wait for it, at a checkpoint."""
        context.stop.set()
        self.close()

    def _follow(self, node: Node, context: RunContext) -> str:
        """Wait for the end of a node: done or reused."""
        order, heard, said, stopped = self._orders[node.site], _Heard(), set[str](), 0.0
        silent = -1  # the reply after which silence was last reported
        while True:
            reply = self._desk.reply(order.id)
            if reply is not None and heard.is_new(reply):
                told = reply.tasks.get(node.given_name)
                if told is not None and told.state in DONE:
                    return told.state
                if told is not None:
                    _show(node, told, context, said)
                if reply.is_last and stopped:
                    raise StoppedError("stopped")
                if reply.is_last:
                    raise AtelierError(f"{node.site}: {reply.problem or reply.state}")
            if context.stop.is_set() and not stopped:
                stopped = time.monotonic()
                self._cancel(order)
            if stopped and time.monotonic() - stopped > STOPPING_S:
                raise StoppedError(f"{node.site} has not confirmed the stop; its agent will stop it")
            if reply is None and not stopped and heard.silence > PATIENCE_S:
                why = self._what_keeps(node.site)
                raise AtelierError(f"{node.site} has not answered for {PATIENCE_S:.0f} s: {why}")
            if reply is not None and silent != heard.number and heard.silence > PATIENCE_S:
                silent = heard.number
                where = "" if "running" in said else "; there: atelier site orders"
                context.say(node, waiting=f"{node.site} has not replied for {PATIENCE_S:.0f} s{where}")
            time.sleep(LOOK_EVERY)

    def _take_files(self, node: Node, context: RunContext) -> None:
        """Wait for the files of the node's products that tasks here need, and publish them."""
        order, told_at = self._orders[node.site], -AGAIN_S
        for key, ordered in order.tasks[node.given_name].products.items():
            while ordered.is_sent and self._store.find(ordered.kind, ordered.fingerprint) is None:
                if context.stop.is_set():
                    raise StoppedError("stopped")
                if take_in(self._desk, order, ordered, node.products[key], self._store):
                    break
                is_sent = any(artifact == ordered for artifact, _ in sent(self._desk, order))
                if not is_sent and self._desk.is_over(order.id):
                    raise AtelierError(
                        f"{node.site} has not sent its {ordered.kind} {node.products[key].name}, and its"
                        " order has ended; run the same command again, or look there: atelier site orders"
                    )
                if time.monotonic() - told_at >= AGAIN_S:
                    told_at = time.monotonic()
                    context.say(node, waiting=f"waits for its files from {node.site}")
                time.sleep(LOOK_EVERY)

    def _cancel(self, order: SiteOrder) -> None:
        with self._lock:
            if not self._desk.is_cancelled(order.id):
                self._desk.put(Cancellation(order=order.id, home=order.home, site=order.site))

    def close(self) -> None:
        """Cancel all orders that have not ended, and unlock them."""
        self._end(self._orders.values())
        for file in self._owned:
            file.close()
        self._owned.clear()

    def _end(self, orders: Iterable[SiteOrder]) -> None:
        for order in orders:
            reply = self._desk.reply(order.id)
            if reply is None or not reply.is_last:
                self._cancel(order)


class _Heard:
    """The number of the last reply to an order, and the seconds since."""

    def __init__(self) -> None:
        self.number, self._at = 0, time.monotonic()
        self.said: set[str] = set()

    def is_new(self, reply: Reply | None) -> bool:
        """Whether a reply is newer than the last one; if so, remember it."""
        if reply is None or reply.number <= self.number:
            return False
        self.number, self._at = reply.number, time.monotonic()
        return True

    @property
    def silence(self) -> float:
        return time.monotonic() - self._at


def _show(node: Node, told: TaskState, context: RunContext, said: set[str]) -> None:
    """Show another site's report on a task; each text in `said` only once."""
    if told.state == "running" and told.state not in said:
        said.add(told.state)
        context.say(node, state=told.state)
    if told.waiting and told.waiting not in said:
        said.add(told.waiting)
        context.say(node, waiting=f"at {node.site}: {told.waiting}")
    if told.warning and told.warning not in said:
        said.add(told.warning)
        context.say(node, warning=f"at {node.site}: {told.warning}")
    if told.progress:
        keys = {"progress", "total", "unit", "rate", "loss"}
        context.listener(node.name, cast(Message, told.model_dump(include=keys)))


def told(problem: Exception) -> AtelierError:
    """An AtelierError for an error of another library or the system."""
    return (
        of_system(problem)
        if isinstance(problem, OSError)
        else AtelierError(f"{type(problem).__name__}: {problem}")
    )


def code_of(node: Node) -> str:
    """The digest of the code that makes the node's products."""
    return fingerprint(cast(JsonObject, maps_of(node)))


def blank_row(node: Node, key: str, kind: str, digest: str) -> PlanRow:
    """An empty row of a plan, for a product of another site."""
    return {
        "name": row_name(node, key), "task": node.task, "kind": kind, "fingerprint": digest, "state": "run",
        "reasons": [], "from_step": 0, "params": 0, "flops": 0.0, "memory_gb": 0.0, "step_s": 0.0,
        "tokens_per_s": 0.0, "mfu": 0.0, "hfu": 0.0, "device_hours": 0.0, "effective_time": 0.0,
        "best_checkpoint_every": 0, "layout": {}, "ranks": 1, "later": [], "computed": "", "site": node.site,
        "pool": "",
    }  # fmt: skip
