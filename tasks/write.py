"""write: text that a finished model writes, as a corpus that any student can learn from, whatever its
tokenizer (sequence-level distillation, 1606.07947).
"""

from atelier.engine.config.base import Spec
from atelier.engine.config.document import section_of
from atelier.engine.config.generation import Written
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.registry import Model, ModelSpec
from atelier.engine.io.machine import num_cores
from atelier.infra.dag import Node, Product, Reference, declare, input_of
from atelier.infra.run.context import RunContext
from atelier.infra.run.gang_request import GangRequest

VERSION = 2  # a text that was cut has no end token, and no half of a character


class Writing(Spec):
    """The config of the node: the engine's, and what is needed to plan it."""

    written: Written
    model: Model


def write(name: str, corpus: Reference, settings: Written, model: Reference, spec: ModelSpec) -> Reference:
    """The corpus `name` with its training documents continued by the model, which is a `spec`."""
    parents = {"corpus": corpus, "model": model}
    identity = {key: value for key, value in settings.as_identity().items() if key != "by"}
    product = Product(
        kind="corpus",
        name=f"{corpus.name} by {model.name}",
        version=VERSION,
        identity=identity,
        parents={role: reference.fingerprint for role, reference in parents.items()},
        origin={key: f"data.written.{key}" for key in identity},
    )
    layout = Parallel(shard=1, threads=num_cores())
    node = Node(
        name="write" if name == "main" else f"write-{name}",
        task="write",
        products={"corpus": product},
        inputs={role: input_of(reference) for role, reference in parents.items()},
        config={
            "written": settings.model_dump(mode="json"),
            "model": spec.model_dump(mode="json"),
        },  # as a Writing
        layout=layout.model_dump(mode="json"),
    )
    return declare(node, list(parents.values()))["corpus"]


def run(node: Node, context: RunContext) -> None:
    context.gang(
        GangRequest(
            node=node,
            module="atelier.engine.write",
            config=lambda fences: section_of(node.config["written"]),
            outputs=context.missing(node),
            threads=node.threads,
            layout=node.layout,
        )
    )
