"""imitate: natural paragraphs, and a trained model's continuations of their beginnings, for an adversarial
objective to distinguish.
"""

from atelier.engine.config.generation import Imitate
from atelier.engine.config.parallel import Parallel
from atelier.engine.io.machine import num_cores
from atelier.infra.dag import Node, Product, Reference, declare, input_of
from atelier.infra.run.context import RunContext
from atelier.infra.run.gang_request import GangRequest

VERSION = 1


def imitate(
    name: str, settings: Imitate, *, model: Reference, tokens: Reference, tokenizer: Reference
) -> Reference:
    """The imitations of one source of text; the model must have been trained with the same tokenizer."""
    parents = {"model": model, "tokens": tokens, "tokenizer": tokenizer}
    identity = settings.as_identity()
    product = Product(
        kind="imitations",
        name=tokens.name,
        version=VERSION,
        identity=identity,
        parents={role: reference.fingerprint for role, reference in parents.items()},
        origin={key: f"imitate.{key}" for key in identity},
    )
    layout = Parallel(shard=1, threads=num_cores())
    node = Node(
        name="imitate" if name == "main" else f"imitate-{name}",
        task="imitate",
        products={"imitations": product},
        inputs={role: input_of(reference) for role, reference in parents.items()},
        config=settings.model_dump(mode="json"),
        layout=layout.model_dump(mode="json"),
    )
    return declare(node, list(parents.values()))["imitations"]


def run(node: Node, context: RunContext) -> None:
    context.gang(
        GangRequest(
            node=node,
            module="atelier.engine.imitate",
            config=lambda fences: node.config,
            outputs=context.missing(node),
            threads=node.threads,
            layout=node.layout,
        )
    )
