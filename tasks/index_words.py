"""index_words: index the words of a corpus, so that evaluation questions are found in it within seconds."""

from unicodedata import unidata_version

from atelier.infra.dag import Reference, declare_one, of_source

VERSION = 1
MODULE = "atelier.engine.prepare"


def index_words(name: str, corpus: Reference) -> Reference:
    return declare_one(
        "index_words",
        "word_index",
        {"corpus": corpus},
        name=corpus.name,
        version=VERSION,
        node=of_source("index_words", name),
        identity={"unicode": unidata_version},
        origin={"unicode": "python"},
    )
