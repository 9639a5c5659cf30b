"""filter_documents: judge each document of a source by filters, and name the reason for each one removed."""

from unicodedata import unidata_version

from atelier.engine.config.curation import Curation
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.task.curation import FilterConfig
from atelier.engine.io.machine import versions
from atelier.infra.dag import Reference, declare_one, of_source

VERSION = 1
MODULE = "atelier.engine.prepare"


def filter_documents(
    name: str, documents: Reference, classifier: Reference | None, curation: Curation
) -> Reference:
    """The verdicts of the filters on one source. `classifier`: of the filter `quality`."""
    filters = list(curation.filters.items())  # their order decides which reason a document gets
    return declare_one(
        "filter_documents",
        "verdicts",
        {"documents": documents} | ({"classifier": classifier} if classifier is not None else {}),
        name=documents.name,
        version=VERSION,
        node=of_source("filter_documents", name),
        identity={
            "filters": [[key, spec.as_identity()] for key, spec in filters],
            "unicode": unidata_version,
            **(versions("py3langid") if any(spec.kind == "language" for _, spec in filters) else {}),
        },
        origin={"filters": "data.curation.filters", "unicode": "python", "py3langid": "package"},
        config=FilterConfig(filters=tuple(filters)),
        layout=Parallel(shard=curation.workers, threads=1),
        ranks=curation.workers,
    )
