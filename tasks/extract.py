"""extract: triples of head, relation and tail, each with a sentence that states it, from a corpus; split as
its documents are.
"""

from atelier.infra.dag import Node, Product, Reference, declare, input_of
from atelier.infra.run.context import RunContext
from atelier.infra.run.gang_request import GangRequest

VERSION = 1


def extract(name: str, corpus: Reference) -> Reference:
    product = Product(
        kind="triples",
        name=corpus.name,
        version=VERSION,
        identity={},
        parents={"corpus": corpus.fingerprint},
    )
    node = Node(
        name="extract" if name == "main" else f"extract-{name}",
        task="extract",
        products={"triples": product},
        inputs={"corpus": input_of(corpus)},
    )
    return declare(node, [corpus])["triples"]


def run(node: Node, context: RunContext) -> None:
    context.gang(
        GangRequest(
            node=node,
            module="atelier.engine.prepare",
            config=lambda fences: node.config,
            outputs=context.missing(node),
        )
    )
