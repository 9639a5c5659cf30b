"""deduplicate: decide which copies and near-copies over all sources are removed."""

from collections.abc import Mapping
from unicodedata import unidata_version  # newer versions know more letters, so other words

from atelier.engine.config.curation import Curation, Deduplicate
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.task.curation import DeduplicateConfig
from atelier.infra.dag import Reference, declare_one

VERSION = 1
MODULE = "atelier.engine.prepare"


def deduplicate(
    documents: Mapping[str, Reference],
    verdicts: Mapping[str, Reference],
    curation: Curation,
    settings: Deduplicate,
) -> Reference:
    """The copies among the documents that filters left."""
    sources = curation.ranked([*documents])
    parents = {f"documents.{name}": each for name, each in documents.items()}
    parents |= {f"verdicts.{name}": each for name, each in verdicts.items()}
    return declare_one(
        "deduplicate",
        "copies",
        parents,
        name="copies",
        version=VERSION,
        identity={**settings.as_identity(), "sources": sources, "unicode": unidata_version},
        origin={
            **{key: f"data.curation.deduplicate.{key}" for key in settings.as_identity()},
            "sources": "data.curation.priority",
            "unicode": "python",
        },
        config=DeduplicateConfig(deduplicate=settings, sources=tuple(sources)),
        layout=Parallel(shard=curation.workers, threads=1),
        ranks=curation.workers,
    )
