"""describe: find or import genre, topic, keywords and sentiment of a corpus's paragraphs; split like its
documents.
"""

from atelier.engine.config.annotations import Described, dictionary
from atelier.engine.config.base import Json
from atelier.engine.config.data import Source
from atelier.engine.config.error import ConfigError, nearest
from atelier.engine.config.generation import GENRES
from atelier.engine.config.task.prepare import DescribeConfig
from atelier.engine.io.source_files import files_of
from atelier.infra.dag import Reference, declare_one, of_source
from atelier.infra.store.source_contents import contents_of, identity_of

VERSION = 1
MODULE = "atelier.engine.prepare"
PLACE = "data.attributes"


def describe(
    name: str,
    corpus: Reference,
    *,
    attributes: Described,
    genres: tuple[str, ...],
    sources: int = 1,
) -> Reference:
    """Attributes of one source's paragraphs; `genres`: those that the models know; `sources`: the number of
    the text's sources.
    """
    genre, files = attributes.genre.get(name, ""), ()
    if genre and genre not in genres:
        near = nearest(genre, genres)
        raise ConfigError(
            f"{PLACE}.genre.{name}",
            f"{genre!r} is none of objective control's: {', '.join(genres)}",
            f"did you mean {near}?" if near else "give one of these",
        )
    if not (genre or attributes.source or {*GENRES} <= {*genres}):
        raise ConfigError(
            f"{PLACE}.genre",
            f"is empty, and by rules genres are {', '.join(GENRES)}, not objective control's"
            f" {', '.join(genres)}",
            f"+{PLACE}.genre.{name}=<genre>, or {PLACE}.source=<labels of documents>",
        )
    identity: dict[str, Json] = {
        key: value for key, value in attributes.as_identity().items() if key not in ("source", "genre")
    } | dictionary(attributes.words, f"{PLACE}.words")
    if attributes.source:
        rows = Source(source=attributes.source, field=attributes.document)
        files = tuple(contents_of(files_of(rows, f"{PLACE}.source")))
        identity |= identity_of([*files])
    if genre:
        identity["genre"] = genre
    if genres != GENRES:
        identity["genres"] = [*genres]
    config = DescribeConfig(attributes=attributes, genre=genre, genres=genres, sources=sources, files=files)
    return declare_one(
        "describe",
        "attributes",
        {"corpus": corpus},
        name=corpus.name,
        version=VERSION,
        node=of_source("describe", name),
        identity=identity,
        origin=dict.fromkeys(identity, PLACE),
        config=config if identity else None,
    )
