"""extract: find triples of head, relation and tail in a corpus, each with a sentence that states it; split
like its documents.
"""

from collections.abc import Mapping

from atelier.engine.config.annotations import MaskingUnits
from atelier.engine.config.base import Json
from atelier.engine.config.data import Source
from atelier.engine.config.taggers import TaggerSpec
from atelier.engine.config.task.prepare import ExtractConfig
from atelier.engine.io.source_files import files_of
from atelier.infra.dag import Reference, declare_one, of_source
from atelier.infra.store.source_contents import contents_of, identity_of
from atelier.tasks.encode import PLACE, marking

VERSION = 1
MODULE = "atelier.engine.prepare"


def extract(
    name: str, corpus: Reference, *, taggers: Mapping[str, TaggerSpec], units: MaskingUnits | None = None
) -> Reference:
    """Triples of one source; without taggers those of Python source and English sentences. `units`: what is
    marked in their sentences.
    """
    files, identity, origin = {}, dict[str, Json](), {}
    for tagger, spec in taggers.items():
        place = f"data.taggers.{tagger}"
        own = {key: value for key, value in spec.as_identity().items() if key != "source"}
        if spec.reads is not None:
            source, field = spec.reads
            files[tagger] = tuple(
                contents_of(files_of(Source(source=source, field=field), f"{place}.source"))
            )
            own |= identity_of([*files[tagger]])
        identity[tagger], origin[tagger] = own, place
    marked, of_units = marking(units)
    if of_units:
        identity[PLACE], origin[PLACE] = of_units, PLACE
    return declare_one(
        "extract",
        "triples",
        {"corpus": corpus},
        name=corpus.name,
        version=VERSION,
        node=of_source("extract", name),
        identity=identity,
        origin=origin,
        config=ExtractConfig(taggers=dict(taggers), files=files, marked=marked) if identity else None,
    )
