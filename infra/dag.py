"""Nodes of a DAG and references between them. A task computes its fingerprints and declares a node to the
scheduler in a context variable.

When planning, the scheduler only records the node; in a run it also submits it. So the plan and the run have
the same nodes.
"""

from collections.abc import Mapping
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from typing import Protocol, cast

from pydantic import Field

from atelier.engine.config.base import Json, JsonObject, Spec
from atelier.engine.config.data_plan import DataPlan
from atelier.engine.config.error import ConfigError, nearest
from atelier.engine.config.mixture import Sharing, SourceShares, row_specs, streams
from atelier.engine.config.own_code import code_of_task
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.record import KINDS, identify
from atelier.engine.config.role import Role
from atelier.engine.config.train import Train


class Future(Protocol):
    """What a scheduler returns for a node that it runs."""

    def wait(self) -> None: ...


@dataclass(frozen=True)
class Reference:
    """One artifact of a node, finished or not, as input of other nodes. `future` is what the scheduler
    returned for the node.
    """

    kind: str
    fingerprint: str
    name: str
    node: str
    future: "Future | None" = field(default=None, compare=False, repr=False)
    kinds: tuple[str, ...] = field(default=(), compare=False)  # as of its Product
    is_begun: bool = field(default=False, compare=False)  # a tokenizer: texts begin with a token of their own


class Product(Spec):
    """One artifact that a node publishes."""

    kind: str
    name: str
    version: int
    identity: JsonObject
    parents: dict[str, str]
    detail: JsonObject = {}  # compared by a plan beside the identity (a model's trajectory)
    detail_parents: dict[str, str] = {}
    trajectories: tuple[str, ...] = ()  # that it is trained in, the trunk first
    kinds: tuple[str, ...] = ()  # a model's: with whose code it is computed (infra/code/code_map.py)
    origin: dict[str, str] = {}  # first component of an identity key -> the configuration key it comes from

    @property
    def fingerprint(self) -> str:
        return identify(self.kind, self.version, self.identity, self.parents)


class NodeTraining(Spec):
    """The config of a node of the tasks train and finetune."""

    roles: dict[str, Role]
    finished: tuple[str, ...] = Field(
        default=(), description="train: roles that an earlier node trains, and that teach as they ended"
    )
    train: Train
    section: str = Field(default="train", description="of the configuration, with its length and link")
    weights: dict[str, float] = Field(default={}, description="train: of the sources of text")
    later: tuple[SourceShares, ...] = Field(default=(), description="train: their weights in later phases")
    sharing: Sharing = Field(default=Sharing(), description="train: assignment and caps of the sources")
    name: str = Field(default="", description="finetune: of the model")
    num_labels: int = Field(default=0, description="finetune: training examples of a draw")

    @property
    def data_plan(self) -> DataPlan:
        """train: what its roles read."""
        found = streams(row_specs(self.roles), self.weights, self.later, self.sharing.epochs)
        begins = tuple(shares.begin for shares in self.later)
        return DataPlan.of(self.train, found, begins, self.sharing.assignment)

    @property
    def frozen(self) -> tuple[str, ...]:
        """Roles that teach as they are: their models are inputs."""
        return (*self.finished, *(name for name, role in self.roles.items() if not role.moves))


class Node(Spec):
    """One task of one flow with everything that a process needs to run it; serializable as JSON."""

    name: str
    task: str
    products: dict[str, Product]
    inputs: dict[
        str, tuple[str, str]
    ] = {}  # role -> (kind, fingerprint) of an artifact that must be finished before
    config: JsonObject = {}
    layout: JsonObject = {}
    ranks: int = 1  # 0 = no gang: it runs in the flow's process
    waits: tuple[str, ...] = ()  # names of the nodes before this one
    kinds: tuple[str, ...] = ()  # of the models that it makes or reads
    site: str = ""  # that runs it, '' = this one

    @property
    def training(self) -> NodeTraining:
        """The config of a node that trains."""
        return NodeTraining.model_validate(self.config)

    @property
    def threads(self) -> int:
        """Of each rank."""
        threads = self.layout.get("threads", 1)
        return threads if isinstance(threads, int) else 1

    @property
    def given_name(self) -> str:
        """The name that the flow gave it, at whatever site it runs."""
        return self.name.removesuffix(f"@{self.site}") if self.site else self.name

    def short(self) -> str:
        return next(iter(self.products.values())).fingerprint[:8] if self.products else ""


class Scheduler(Protocol):
    def declare(self, node: Node, after: list[Reference]) -> Future | None:
        """Record `node` and perhaps submit it; the return value becomes the `future` of its references."""


_scheduler: ContextVar[Scheduler] = ContextVar("scheduler")


def scheduling(scheduler: Scheduler) -> Token[Scheduler]:
    """Set the scheduler that receives declared nodes; returns the token for `stop_scheduling`."""
    return _scheduler.set(scheduler)


def stop_scheduling(token: Token[Scheduler]) -> None:
    _scheduler.reset(token)


def declare(node: Node, after: list[Reference]) -> dict[str, Reference]:
    """Declare `node` to the scheduler and return a reference to each product, by its key.

    A task of another root than Atelier has its code in the identity of its products. Raises ConfigError when
    the product of its layout's axes is not its number of ranks, and for a kind of artifact that is unknown.
    """
    layout = Parallel.model_validate(node.layout) if node.layout else None
    if layout is not None and layout.ranks != node.ranks:
        raise ConfigError(
            f"{node.name}.layout",
            f"the axes' product is {layout.ranks}, but the task {node.task} runs with {node.ranks}",
            "ranks=parallel.ranks, or the layout of one rank",
        )
    waits = tuple(sorted({reference.node for reference in after if reference.node}))
    if code := code_of_task(node.task):
        node = node.model_copy(update={"products": _with_code(node, cast(JsonObject, code))})
    kinds = {kind for one in (*after, *node.products.values()) for kind in one.kinds}
    node = node.model_copy(update={"waits": waits, "kinds": tuple(sorted(kinds))})
    future = _scheduler.get().declare(node, after)
    return {
        key: Reference(
            kind=product.kind,
            fingerprint=product.fingerprint,
            name=product.name,
            node=node.name,
            future=future,
            kinds=product.kinds,
        )
        for key, product in node.products.items()
    }


def _with_code(node: Node, code: JsonObject) -> dict[str, Product]:
    """The products of a task of another root, with its code in their identity."""
    for key, product in node.products.items():
        if product.kind not in KINDS:
            near = nearest(product.kind, KINDS)
            raise ConfigError(
                f"{node.name}.{key}",
                f"{product.kind} is no kind of artifact",
                (f"did you mean {near}? " if near else "") + f"known: {', '.join(KINDS)}",
            )
    return {
        key: product.model_copy(update={"identity": {**product.identity, "code": code}})
        for key, product in node.products.items()
    }


def declare_one(
    task: str,
    kind: str,
    parents: Mapping[str, Reference],
    *,
    name: str,
    version: int,
    node: str = "",
    identity: Mapping[str, Json] | None = None,
    origin: Mapping[str, str] | None = None,
    kinds: tuple[str, ...] = (),
    inputs: Mapping[str, Reference] | None = None,
    config: Spec | None = None,
    layout: Parallel | None = None,
    ranks: int = 1,
) -> Reference:
    """Declare a task with one product, `name` of `kind`, and return it. `node`: where that is not the task's
    name; `inputs`: where the task reads others than the parents.
    """
    product = Product(
        kind=kind,
        name=name,
        version=version,
        identity=identity or {},
        parents={role: parent.fingerprint for role, parent in parents.items()},
        origin=dict(origin or {}),
        kinds=kinds,
    )
    inputs = parents if inputs is None else inputs
    made = Node(
        name=node or task,
        task=task,
        products={kind: product},
        inputs={role: input_of(reference) for role, reference in inputs.items()},
        config=config.model_dump(mode="json") if config else {},
        layout=layout.model_dump(mode="json") if layout else {},
        ranks=ranks,
    )
    return declare(made, list(inputs.values()))[kind]


def of_source(task: str, source: str) -> str:
    """The name of a task's node for one source of text: the task's for the first, main."""
    return task if source == "main" else f"{task}-{source}"


def input_of(reference: Reference) -> tuple[str, str]:
    return (reference.kind, reference.fingerprint)
