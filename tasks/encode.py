"""encode: a corpus as memory-mapped tokens, documents kept apart, the held-out ones in a file of their
own.
"""

from atelier.infra.dag import Reference, declare_one, of_source

VERSION = 1
MODULE = "atelier.engine.prepare"


def encode(name: str, corpus: Reference, tokenizer: Reference, *, node: str = "") -> Reference:
    """`node`: the task's name, where a text is encoded twice."""
    return declare_one(
        "encode",
        "tokens",
        {"corpus": corpus, "tokenizer": tokenizer},
        name=corpus.name,
        version=VERSION,
        node=node or of_source("encode", name),
    )
