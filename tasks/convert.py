"""convert: a finished model as one of another shape, by a rule: experts merged, or made of a dense model."""

from atelier.engine.config.conversions import Conversion
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.registry import ModelSpec
from atelier.infra.dag import Node, Product, Reference, declare, input_of
from atelier.infra.launch.machine import num_cores
from atelier.infra.run.context import RunContext
from atelier.infra.run.gang_request import GangRequest

VERSION = 1


def convert(
    model: Reference,
    spec: ModelSpec,
    rule: Conversion,
    *,
    tokens: Reference,
    name: str,
    node: str = "convert",
    beside: int = 1,
) -> tuple[Reference, ModelSpec]:
    """The converted model, called `name`, and its spec. `tokens`: training text, for rules that have the
    model read some; `beside`: how many conversions share the cores. Raises ConfigError for a model that the
    rule is not for.
    """
    made = rule.converted(spec)
    parents = {"model": model} | ({"tokens": tokens} if rule.num_tokens else {})
    product = Product(
        kind="model",
        name=name,
        version=VERSION,
        identity={"rule": rule.as_identity()},
        parents={role: reference.fingerprint for role, reference in parents.items()},
        origin={"rule": "convert"},
    )
    layout = Parallel(shard=1, threads=max(1, num_cores() // beside))
    asked = Node(
        name=node,
        task="convert",
        products={"model": product},
        inputs={role: input_of(reference) for role, reference in parents.items()},
        config={"rule": rule.model_dump(mode="json")},
        layout=layout.model_dump(mode="json"),
    )
    return declare(asked, list(parents.values()))["model"], made


def run(node: Node, context: RunContext) -> None:
    context.gang(
        GangRequest(
            node=node,
            module="atelier.engine.convert",
            config=lambda fences: node.config,
            outputs=context.missing(node),
            threads=node.threads,
            layout=node.layout,
        )
    )
