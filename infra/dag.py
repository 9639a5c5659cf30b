"""Nodes of a DAG and references between them. A task fingerprints itself and declares a node; one context
variable decides what follows.

While a plan is drawn the scheduler only writes the node down; in a run it also submits it. So what is planned
is what runs.
"""

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

from atelier.engine.config.base import Spec
from atelier.engine.config.error import ConfigError
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.record import identify


@dataclass(frozen=True)
class Reference:
    """One artifact of a node, finished or not: what the next task needs to know of it. `future` is the
    scheduler's.
    """

    kind: str
    fingerprint: str
    name: str
    node: str
    future: Any = field(default=None, compare=False, repr=False)


class Product(Spec):
    """One artifact that a node publishes."""

    kind: str
    name: str
    version: int
    identity: dict[str, Any]
    parents: dict[str, str]
    detail: dict[
        str, Any
    ] = {}  # what a plan compares when the identity alone does not tell (a model's trajectory)
    detail_parents: dict[str, str] = {}
    trajectories: tuple[str, ...] = ()  # in which it is trained, the trunk first
    origin: dict[str, str] = {}  # first part of an identity key -> the configuration key it comes from

    @property
    def fingerprint(self) -> str:
        return identify(self.kind, self.version, self.identity, self.parents)


class Node(Spec):
    """One task of one flow with everything that a process needs to run it: plain JSON, no objects."""

    name: str
    task: str
    products: dict[str, Product]
    inputs: dict[
        str, tuple[str, str]
    ] = {}  # role -> (kind, fingerprint) of an artifact that must be finished before
    config: dict[str, Any] = {}
    layout: dict[str, Any] = {}
    ranks: int = 1  # 0 = no gang: it runs where its flow does
    waits: tuple[str, ...] = ()  # names of the nodes before this one

    def short(self) -> str:
        return next(iter(self.products.values())).fingerprint[:8] if self.products else ""


class Scheduler(Protocol):
    def declare(self, node: Node, after: list[Reference]) -> Any:
        """Write `node` down, submit it or not; what comes back becomes its references' future."""


_scheduler: ContextVar[Scheduler] = ContextVar("scheduler")


def scheduling(scheduler: Scheduler) -> Any:
    """Make `scheduler` the one that declared nodes go to; returns the token for `stop_scheduling`."""
    return _scheduler.set(scheduler)


def stop_scheduling(token: Any) -> None:
    _scheduler.reset(token)


def declare(node: Node, after: list[Reference]) -> dict[str, Reference]:
    """Hand `node` to the scheduler; a reference for each product, by its key. ConfigError where its layout is
    one for other ranks than it will have: the gang would start, and die of it.
    """
    layout = Parallel.model_validate(node.layout) if node.layout else None
    if layout is not None and layout.ranks != node.ranks:
        raise ConfigError(
            f"{node.name}.layout",
            f"the axes' product is {layout.ranks}, but the task {node.task} runs with {node.ranks}",
            "Parallel.of_one_rank() is the layout of a task without a gang",
        )
    waits = tuple(sorted({reference.node for reference in after if reference.node}))
    node = node.model_copy(update={"waits": waits})
    future = _scheduler.get().declare(node, after)
    return {
        key: Reference(
            kind=product.kind,
            fingerprint=product.fingerprint,
            name=product.name,
            node=node.name,
            future=future,
        )
        for key, product in node.products.items()
    }


def input_of(reference: Reference) -> tuple[str, str]:
    return (reference.kind, reference.fingerprint)
