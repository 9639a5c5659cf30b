"""extract: find triples of head, relation and tail in a corpus, each with a sentence that states it; split
like its documents.
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
