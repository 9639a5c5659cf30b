"""encode: write a corpus as memory-mapped tokens, separated by document; held-out documents in their own
file.
"""

from atelier.engine.config.annotations import MaskingUnits, dictionary
from atelier.engine.config.base import Json
from atelier.engine.config.data import Source
from atelier.engine.config.task.prepare import EncodeConfig
from atelier.engine.io.source_files import files_of
from atelier.infra.dag import Reference, declare_one, of_source
from atelier.infra.store.source_contents import contents_of, identity_of

VERSION = 1
MODULE = "atelier.engine.prepare"
PLACE = "data.units"


def encode(
    name: str,
    corpus: Reference,
    tokenizer: Reference,
    *,
    node: str = "",
    units: MaskingUnits | None = None,
    triples: Reference | None = None,
    sources: int = 1,
) -> Reference:
    """`node`: the task's name, if a text is encoded twice. `units`: what is marked for knowledge masking, by
    the names of `triples` if it asks for them. `sources`: the number of the text's sources.
    """
    marked, identity = marking(units, sources)
    inputs = {"corpus": corpus, "tokenizer": tokenizer}
    return declare_one(
        "encode",
        "tokens",
        inputs if triples is None else inputs | {"triples": triples},
        name=corpus.name,
        version=VERSION,
        node=node or of_source("encode", name),
        identity=identity,
        origin=dict.fromkeys(identity, PLACE),
        config=marked if identity else None,
    )


def marking(units: MaskingUnits | None, sources: int = 1) -> tuple[EncodeConfig, dict[str, Json]]:
    """The task's settings of masking units and their identity, both empty without units. Raises ConfigError
    if the package that divides text into words is missing.
    """
    if units is None or units.is_plain:
        return EncodeConfig(), {}
    identity = {
        key: value for key, value in units.as_identity().items() if key != "entities" or not units.reads
    } | dictionary(units.words, f"{PLACE}.words")
    files = ()
    if units.reads:
        rows = Source(source=units.reads, field=units.field)
        files = tuple(contents_of(files_of(rows, f"{PLACE}.entities")))
        identity |= identity_of([*files])
    return EncodeConfig(units=units, files=files, sources=sources), identity
