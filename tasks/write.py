"""write: generate a corpus with a finished model, for students with any tokenizer (sequence-level
distillation, 1606.07947).
"""

from atelier.engine.config.document import section_of
from atelier.engine.config.generation import Written
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.task.write import WriteConfig
from atelier.engine.io.machine import num_cores
from atelier.infra.dag import Node, Reference, declare_one, of_source
from atelier.infra.run.context import RunContext
from atelier.infra.run.gang_request import GangRequest

VERSION = 2  # a cut text has no end token and no partial character


def write(name: str, corpus: Reference, settings: Written, model: Reference, spec: ModelSpec) -> Reference:
    """The corpus `name`, its training documents continued by the model, of spec `spec`."""
    identity = {key: value for key, value in settings.as_identity().items() if key != "by"}
    return declare_one(
        "write",
        "corpus",
        {"corpus": corpus, "model": model},
        name=f"{corpus.name} by {model.name}",
        version=VERSION,
        node=of_source("write", name),
        identity=identity,
        origin={key: f"data.written.{key}" for key in identity},
        config=WriteConfig(written=settings, model=spec),
        layout=settings.parallel(max(1, num_cores() // settings.ranks)),
        ranks=settings.ranks,
    )


def run(node: Node, context: RunContext) -> None:
    context.gang(
        GangRequest(
            node=node,
            module="atelier.engine.write",
            config=lambda fences: section_of(node.config["written"]),
            outputs=context.missing(node),
        )
    )
