"""The curation part of flows: from the sources of `data` together to a corpus of each."""

from atelier.engine.config.curation import Curation
from atelier.engine.config.data import Data
from atelier.infra.dag import Reference
from atelier.tasks.assemble import assemble
from atelier.tasks.collect import collect
from atelier.tasks.decontaminate import decontaminate
from atelier.tasks.deduplicate import deduplicate
from atelier.tasks.filter_documents import filter_documents
from atelier.tasks.learn_quality import learn_quality


def curated(data: Data, curation: Curation) -> dict[str, Reference]:
    """The corpus of every source."""
    sources = data.sources()
    documents = {name: collect(name, source, curation) for name, source in sources.items()}
    filtered = (curation.filtered or [*sources]) if curation.filters else ()
    classifier = learn_quality(documents, curation.quality) if curation.quality is not None else None
    verdicts = {name: filter_documents(name, documents[name], classifier, curation) for name in filtered}
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
