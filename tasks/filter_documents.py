"""filter_documents: judge each document of a source by filters, and name the reason for each one removed."""

from atelier.engine.config.curation import Curation
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.task.curation import FilterConfig
from atelier.infra.dag import Reference, declare_one, of_source

VERSION = 1
MODULE = "atelier.engine.prepare"


def filter_documents(name: str, documents: Reference, curation: Curation) -> Reference:
    """The verdicts of the filters on one source."""
    filters = list(curation.filters.items())  # their order decides which reason a document gets
    return declare_one(
        "filter_documents",
        "verdicts",
        {"documents": documents},
        name=documents.name,
        version=VERSION,
        node=of_source("filter_documents", name),
        identity={"filters": [[key, spec.as_identity()] for key, spec in filters]},
        origin={"filters": "data.curation.filters"},
        config=FilterConfig(filters=curation.filters),
        layout=Parallel(shard=curation.workers, threads=1),
        ranks=curation.workers,
    )
