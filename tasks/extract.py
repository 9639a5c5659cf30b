"""extract: triples of head, relation and tail, each with a sentence that states it, from a corpus; split as
its documents are.
"""

from atelier.infra.dag import Reference, declare_one, of_source

VERSION = 1
MODULE = "atelier.engine.prepare"


def extract(name: str, corpus: Reference) -> Reference:
    return declare_one(
        "extract",
        "triples",
        {"corpus": corpus},
        name=corpus.name,
        version=VERSION,
        node=of_source("extract", name),
    )
