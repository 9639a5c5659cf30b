"""describe: find genre, topic, keywords and sentiment of a corpus's paragraphs; split like its documents."""

from atelier.infra.dag import Reference, declare_one, of_source

VERSION = 1
MODULE = "atelier.engine.prepare"


def describe(name: str, corpus: Reference) -> Reference:
    return declare_one(
        "describe",
        "attributes",
        {"corpus": corpus},
        name=corpus.name,
        version=VERSION,
        node=of_source("describe", name),
    )
