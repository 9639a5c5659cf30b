"""encode: a corpus as memory-mapped tokens, documents kept apart, the held-out ones in a file of their
own.
"""

from atelier.infra.dag import Node, Product, Reference, declare, input_of
from atelier.infra.run.context import RunContext
from atelier.infra.run.gang_request import GangRequest

VERSION = 1


def encode(name: str, corpus: Reference, tokenizer: Reference, *, node: str = "") -> Reference:
    """`node`: the task's name, where a text is encoded twice."""
    product = Product(
        kind="tokens",
        name=corpus.name,
        version=VERSION,
        identity={},
        parents={"corpus": corpus.fingerprint, "tokenizer": tokenizer.fingerprint},
    )
    task = Node(
        name=node or ("encode" if name == "main" else f"encode-{name}"),
        task="encode",
        products={"tokens": product},
        inputs={"corpus": input_of(corpus), "tokenizer": input_of(tokenizer)},
    )
    return declare(task, [corpus, tokenizer])["tokens"]


def run(node: Node, context: RunContext) -> None:
    context.gang(
        GangRequest(
            node=node,
            module="atelier.engine.prepare",
            config=lambda fences: node.config,
            outputs=context.missing(node),
        )
    )
