"""encode: write a corpus as memory-mapped tokens, separated by document; held-out documents in their own
file.
"""

from atelier.infra.dag import Reference, declare_one, of_source

VERSION = 1
MODULE = "atelier.engine.prepare"


def encode(name: str, corpus: Reference, tokenizer: Reference, *, node: str = "") -> Reference:
    """`node`: the task's name, if a text is encoded twice."""
    return declare_one(
        "encode",
        "tokens",
        {"corpus": corpus, "tokenizer": tokenizer},
        name=corpus.name,
        version=VERSION,
        node=node or of_source("encode", name),
    )
