"""The curation part of flows: collect -> filter -> deduplicate -> decontaminate -> assemble, for all sources
of `data` together.
"""

from atelier.engine.config.curation import Curation
from atelier.engine.config.data import Data
from atelier.infra.dag import Reference
from atelier.tasks.assemble import assemble
from atelier.tasks.collect import collect
from atelier.tasks.decontaminate import decontaminate
from atelier.tasks.deduplicate import deduplicate
from atelier.tasks.filter_documents import filter_documents


def curated(data: Data, curation: Curation) -> dict[str, Reference]:
    """The corpus of every source."""
    sources = data.sources()
    documents = {name: collect(name, source, curation) for name, source in sources.items()}
    filtered = (curation.filtered or [*sources]) if curation.filters else ()
    verdicts = {name: filter_documents(name, documents[name], curation) for name in filtered}
    stages: dict[str, Reference] = {}
    if curation.deduplicate is not None:
        stages["copies"] = deduplicate(documents, verdicts, curation, curation.deduplicate)
    if curation.decontaminate is not None:
        copies = stages.get("copies")
        stages["overlaps"] = decontaminate(documents, verdicts, copies, curation, curation.decontaminate)
    corpora: dict[str, Reference] = {}
    for name in sources:
        own = {f"verdicts.{name}": verdicts[name]} if name in verdicts else {}
        corpora[name] = assemble(name, documents[name], own | stages, data, curation)
    return corpora
