"""describe: paragraphs of a corpus with their genre, topic, keywords and sentiment; split as its documents
are.
"""

from atelier.infra.dag import Node, Product, Reference, declare, input_of
from atelier.infra.run.context import RunContext
from atelier.infra.run.gang_request import GangRequest

VERSION = 1


def describe(name: str, corpus: Reference) -> Reference:
    product = Product(
        kind="attributes",
        name=corpus.name,
        version=VERSION,
        identity={},
        parents={"corpus": corpus.fingerprint},
    )
    node = Node(
        name="describe" if name == "main" else f"describe-{name}",
        task="describe",
        products={"attributes": product},
        inputs={"corpus": input_of(corpus)},
    )
    return declare(node, [corpus])["attributes"]


def run(node: Node, context: RunContext) -> None:
    context.gang(
        GangRequest(
            node=node,
            module="atelier.engine.prepare",
            config=lambda fences: node.config,
            outputs=context.missing(node),
        )
    )
