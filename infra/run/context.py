"""Run context of a task: store, slots, tracker and listener; it makes artifacts with a gang or in this
process.
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, Unpack, cast

from atelier.engine.config.base import Json
from atelier.engine.config.device import CPU
from atelier.engine.config.error import DamageError, StoppedError
from atelier.engine.config.message import Message, OnMessage
from atelier.engine.config.own_code import files_of_code
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.pool import Pool
from atelier.engine.config.record import Provenance, Record
from atelier.engine.config.run_file import RunFile, root_places
from atelier.engine.config.sections import extensions_of
from atelier.engine.config.site import Site
from atelier.engine.config.trajectory import Segment
from atelier.engine.io.fork_server import ForkServer
from atelier.infra.code.code_change import Map, files_of
from atelier.infra.code.code_map import hooks_map, maps_of, sources_of
from atelier.infra.code.provenance import code_provenance
from atelier.infra.dag import Node, Product
from atelier.infra.launch import batch_job
from atelier.infra.launch.batch_systems import batch_of
from atelier.infra.launch.gang import PREPARES, compile_cache, fork_server, start_gang
from atelier.infra.launch.gpus import VISIBLE
from atelier.infra.launch.orders import GangOutput, Orders
from atelier.infra.launch.rendezvous import NodePlace, Rendezvous
from atelier.infra.launch.slots import GpuSlots, Slots, core_slots, num_slots, who
from atelier.infra.run.gang_request import GangRequest
from atelier.infra.run.resume_plan import Resume
from atelier.infra.run.run_tracker import RunTracker
from atelier.infra.store.lease import Holder, Lease, Renewal, take
from atelier.infra.store.store import Store, read_body
from atelier.infra.store.trajectory import begin_again


class Listener(Protocol):
    def __call__(self, node: str, message: Message, /) -> None:
        """Receive progress, warnings and states of the node called `node`."""


@dataclass(kw_only=True)
class RunContext:
    """One run of one flow on this machine."""

    store: Store
    slots: Slots  # cores
    scratch: Path
    run_id: str
    flow: str
    command: str
    listener: Listener
    tracker: RunTracker = field(default_factory=RunTracker)
    stop: threading.Event = field(default_factory=threading.Event)
    links: dict[str, str] = field(default_factory=dict)
    pool: Pool = field(default_factory=Pool)
    site: Site = field(default_factory=Site)
    place: NodePlace | None = None  # of this node in a gang of several nodes
    resume: Resume = field(default_factory=Resume)
    forks: bool = False  # ranks on this machine are forked by a fork server
    others: "dict[str, RunContext]" = field(default_factory=dict)  # of tasks that other pools run
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _gpus: list[GpuSlots] = field(default_factory=list)  # empty until a gang needs GPUs, then one entry
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def of_task(self, task: str) -> "RunContext":
        """The context on the pool that runs the task."""
        return self.others.get(task, self)

    def put_on(self, task: str, pool: Pool, site: Site) -> None:
        """Let `pool` run the task."""
        equal = [one for one in (self, *self.others.values()) if one.pool == pool]
        slots = core_slots(pool, self.store)
        self.others[task] = (
            equal[0] if equal else replace(self, pool=pool, site=site, slots=slots, others={}, _gpus=[])
        )

    def missing(self, node: Node) -> dict[str, Product]:
        """Products of `node` that are not finished yet."""
        return {key: p for key, p in node.products.items() if self.store.find(p.kind, p.fingerprint) is None}

    def record(self, kind: str, fingerprint: str) -> Record:
        """The record of a finished artifact. Raises RuntimeError when it is not finished."""
        found = self.store.find(kind, fingerprint)
        if found is None:
            raise RuntimeError(
                f"{kind} {fingerprint[:16]} is not finished, though a task that needs it was started"
            )
        return found

    def vocab(self, node: Node) -> int:
        """Vocabulary size of the node's tokenizer. Raises DamageError when its record does not have it."""
        tokenizer = self.record(*node.inputs["tokenizer"])
        if "vocab" not in tokenizer.summary:
            raise DamageError(
                f"{self.store.address(tokenizer.kind, tokenizer.fingerprint)}: without its vocab"
            )
        return tokenizer.summary["vocab"]

    def peak_tflops(self, node: Node) -> float:
        """Dense peak of one rank of the node's gang, TFLOP/s; 0 = unknown."""
        threads = node.layout.get("threads", 1)
        return self.pool.rank_tflops(threads if isinstance(threads, int) else 1)

    def urls(self, node: Node) -> dict[str, str]:
        """Addresses of the node's inputs, by role."""
        return {role: self.store.address(kind, fp) for role, (kind, fp) in node.inputs.items()}

    def provenance(self, node: Node) -> Provenance:
        about = {
            **code_provenance(),
            "started": time.time(),
            "flow": self.flow,
            "run": self.run_id,
            "command": self.command,
            "task": node.task,
            **self.links,
            "layouts": [node.layout] if node.layout else [],
        }
        return cast(Provenance, about)  # with links, versions and layouts as extra keys

    def draft(self, node: Node, product: Product, code: Map | None = None) -> Record:
        return Record(
            kind=product.kind,
            name=product.name,
            fingerprint=product.fingerprint,
            version=product.version,
            identity=product.identity,
            parents=product.parents,
            provenance=self.provenance(node) | (Provenance(code=files_of(code)) if code else Provenance()),
        )

    def begin_again(self, node: Node, trained: dict[str, list[Segment]]) -> None:
        """Delete the trajectories of these trainings (by product) from store and tracker, under their leases,
        so that they start from step 0. Products finished while waiting for the leases are left alone.
        """
        segments = {segment.fingerprint for each in trained.values() for segment in each}
        with self.leases(node, [self.store.address("trajectory", segment) for segment in sorted(segments)]):
            done = trained.keys() - self.missing(node).keys()
            segments -= {segment.fingerprint for key in done for segment in trained[key]}
            for segment in sorted(segments):
                begin_again(self.store, segment)
        self.tracker.begin_again(sorted(segments))

    def say(self, node: Node, **message: Unpack[Message]) -> None:
        self.listener(node.name, message)

    @contextmanager
    def following(self, node: Node, roles: Mapping[str, list[Segment]]) -> Iterator[None]:
        """Send metrics of the roles' trajectories to the tracker while the block runs."""
        with self.tracker.following(node, roles):
            yield

    def register(self, name: str, kind: str, fingerprint: str, aliases: list[str]) -> str:
        """Register a finished model under `name`; returns its address in the registry."""
        return self.tracker.register(name, self.record(kind, fingerprint), aliases)

    @contextmanager
    def leases(self, node: Node, addresses: Sequence[str]) -> Iterator[list[Lease]]:
        """Hold the leases of all addresses, in sorted order; those published meanwhile are left out."""
        held: list[Lease] = []
        with ExitStack() as stack:
            for address in sorted(set(addresses)):  # one artifact under two names has one lease
                lease = take(
                    address,
                    Holder.me(node.name),
                    stopped=self.stop,
                    on_wait=lambda text: self.say(node, waiting=text),
                )
                if lease is not None:
                    stack.callback(lease.let_go)
                    held.append(lease)
            renewal = Renewal(held)
            stack.callback(renewal.stop)
            yield held

    def gang(self, asked: GangRequest) -> None:
        """Run a gang that makes the outputs: take leases and slots, start supervisor and ranks, publish
        records.
        """
        node, addresses = asked.node, asked.addresses
        if addresses is None:
            addresses = [self.store.address(p.kind, p.fingerprint) for p in asked.outputs.values()]

        def on_message(message: Message) -> None:
            if asked.heard is not None:
                asked.heard(message)
            self.listener(node.name, message)

        with self.leases(node, addresses) as held:
            outputs = {
                key: p for key, p in asked.outputs.items() if self.store.find(p.kind, p.fingerprint) is None
            }
            first = {p.fingerprint: key for key, p in reversed(outputs.items())}
            outputs = {key: p for key, p in outputs.items() if first[p.fingerprint] == key}  # no duplicates
            if not outputs and not asked.is_asked():
                return
            if self.pool.launcher != "here":
                self._start_away(self._orders(asked, outputs, held, node.ranks), on_message)
                return
            here = self.place.share(node.ranks) if self.place else node.ranks
            with self._claim(node, asked.module, here, asked.threads or node.threads) as (env, descriptors):
                orders = self._orders(asked, outputs, held, here)
                orders = orders.model_copy(update={"env": orders.env | env, "held": descriptors})
                if self.place is None:
                    self.say(node, state="running")
                    start_gang(orders, on_message, self.stop, self._fork_server())
                    return
                with self._together(Rendezvous(self.store.root, self.place, self.stop)) as rendezvous:
                    rendezvous.arrive()
                    met = rendezvous.gather(orders.run, lambda text: self.say(node, waiting=text))
                    self.say(node, state="running")
                    orders = orders.model_copy(update={"world": node.ranks, "env": orders.env | met})
                    start_gang(orders, on_message, self.stop, self._fork_server())

    def _start_away(self, orders: Orders, on_message: OnMessage) -> None:
        """Run the gang as a batch job on the pool's batch system, whose queue takes the place of slots."""
        batch = batch_of(self.pool, self.site)
        per_node = num_slots(self.pool) // (orders.threads if self.pool.is_cpu else 1)
        batch_job.start_gang(orders, on_message, self.stop, batch=batch, per_node=max(1, per_node))

    @contextmanager
    def _claim(
        self,
        node: Node,
        module: str,
        ranks: int,
        threads: int,
        told: Callable[[str], None] = lambda what: None,
    ) -> Iterator[tuple[dict[str, str], tuple[int, ...]]]:
        """Hold slots for `ranks` ranks during the block: a GPU for each, or a core for each thread.

        Yields the environment that hides all other GPUs, and the descriptors that hold the slots. `told` is
        called with the reason for waiting.
        """

        def on_wait(what: str, pids: list[int]) -> None:
            told(what)
            self.say(node, waiting=f"waits for {what}; {who(pids, self.store)} (Ctrl-C leaves it running)")

        if computes_on(self.pool, module, node.layout)[0] == CPU:
            with self.slots.claim(ranks * threads, self.stop, on_wait) as claim:
                yield {VISIBLE: ""}, claim.descriptors
            return
        with self._lock:
            self._gpus = self._gpus or [GpuSlots(self.pool)]
        gpus = self._gpus[0]
        gpus.check(ranks, node.name)
        with gpus.claim(ranks, self.stop, on_wait) as claim:
            yield {VISIBLE: gpus.devices(claim)}, claim.descriptors

    def follow(self, node: Node, module: str, ranks: int, threads: int) -> None:
        """Run this node's ranks of a gang whose first node leases, saves and publishes."""
        assert self.place is not None
        share = self.place.share(ranks)
        with (
            self._together(Rendezvous(self.store.root, self.place, self.stop)) as rendezvous,
            self._claim(node, module, share, threads, rendezvous.wait_for) as (visible, descriptors),
        ):
            rendezvous.arrive()
            run, env = rendezvous.follow()
            self.say(node, state="running")
            scratch = self.scratch / f"{next(self._numbers):03d}-{node.name.replace('/', '-')}"
            (scratch / "work").mkdir(parents=True, exist_ok=True)
            orders = Orders(
                name=node.name,
                module=module,
                run=run.model_copy(update={"scratch": str(scratch / "work")}),
                root=self.store.root,
                scratch=scratch,
                ranks=share,
                threads=threads,
                grace_s=self.pool.grace_s,
                env=compile_cache(self.store.root) | visible | env,
                held=descriptors,
                first_rank=self.place.index * share,
                world=ranks,
            )
            start_gang(
                orders, lambda message: self.listener(node.name, message), self.stop, self._fork_server()
            )

    def _fork_server(self) -> ForkServer | None:
        return fork_server(self.store.root) if self.forks else None

    @contextmanager
    def _together(self, rendezvous: Rendezvous) -> Iterator[Rendezvous]:
        """During the block: if this node ends, stop the gang's other nodes, and vice versa."""
        ended = threading.Event()
        watcher = threading.Thread(target=rendezvous.watch, args=(self.stop, ended), daemon=True)
        watcher.start()
        try:
            yield rendezvous
        except BaseException as error:
            rendezvous.end(f"{type(error).__name__}: {error}")
            raise
        finally:
            ended.set()
            watcher.join()

    def _orders(
        self, asked: GangRequest, outputs: dict[str, Product], held: list[Lease], ranks: int
    ) -> Orders:
        """Orders for the `ranks` ranks here and the missing outputs."""
        node = asked.node
        scratch = self.scratch / f"{next(self._numbers):03d}-{node.name.replace('/', '-')}"
        maps = maps_of(node)
        payloads = {key: self.store.new_payload(p.kind, p.fingerprint) for key, p in outputs.items()}
        fences = {lease.log.address: lease.fence + 1 for lease in held}  # those of the supervisor
        config = asked.config(fences) if asked.config else node.config
        device, gpu = computes_on(self.pool, asked.module, node.layout)
        layout = Parallel.model_validate({**node.layout, "device": device})
        run = RunFile(
            schema=1,
            task=node.task,
            version=next(iter(node.products.values())).version,
            config=config,
            inputs=dict(asked.inputs() if asked.inputs else {}) or self.urls(node),
            outputs=payloads,
            scratch=str(scratch / "work"),
            layout=layout,
            gpu=gpu,
            seed=asked.seed,
            ids={"flow": self.run_id, "task": node.name},
            sources=sources_of({**maps, "": hooks_map(extensions_of(layout))}) | files_of_code(),
            roots=root_places(),
        )
        (scratch / "work").mkdir(parents=True, exist_ok=True)
        return Orders(
            name=node.name,
            module=asked.module,
            run=run,
            root=self.store.root,
            scratch=scratch,
            ranks=ranks,
            threads=asked.threads or node.threads,
            grace_s=self.pool.grace_s,
            leases={lease.log.address: lease.fence for lease in held},
            env=compile_cache(self.store.root),
            reads=_kinds_of(config.get("files")),
            outputs={
                key: GangOutput(payload=payloads[key], draft=self.draft(node, p, maps.get(key)))
                for key, p in outputs.items()
            },
        )

    def here(self, node: Node, key: str, build: Callable[[str], None]) -> Record:
        """Make one product in this process: `build(payload_url)` writes files and body with
        engine.io.artifact.ArtifactOutput. Raises StoppedError when a stop was requested.
        """
        product = node.products[key]
        address = self.store.address(product.kind, product.fingerprint)
        with self.leases(node, [address]) as held:
            found = self.store.find(product.kind, product.fingerprint)
            if found is not None:
                return found
            if self.stop.is_set():
                raise StoppedError("stopped")
            self.say(node, state="running")
            draft = self.draft(node, product)
            payload = self.store.new_payload(product.kind, product.fingerprint)
            build(payload)
            files, summary = read_body(payload)
            ended = {**draft.provenance, "ended": time.time(), "device_seconds": 0.0}
            draft = draft.model_copy(update={"files": files, "summary": summary, "provenance": ended})
            return self.store.publish(draft, Holder.me(node.name), fence=held[0].fence)


def computes_on(pool: Pool, module: str, layout: Mapping[str, Json]) -> tuple[str, str]:
    """The device of a gang, cpu or cuda: the layout's, or the pool's if that says auto. Also the type of GPU
    that its ranks must find; empty for any, or none.
    """
    asked = CPU if module == PREPARES else str(layout.get("device", "auto"))
    device = asked if asked != "auto" else CPU if pool.is_cpu else "cuda"
    return device, "" if device == CPU or pool.is_cpu else pool.gpu


def _kinds_of(files: Json) -> tuple[str, ...]:
    """Kinds of remote store among the files (URL, content id) that a gang reads: hf, s3."""
    urls = (
        [str(each[0]) for each in files if isinstance(each, list | tuple)] if isinstance(files, list) else []
    )
    parts = [part.partition("://") for url in urls for part in url.split("::")]
    return tuple(sorted({kind for kind, is_url, _ in parts if is_url}))
