"""The curation part of flows: from the sources of `data` together to a corpus of each."""

from atelier.engine.config.curation import Curation, Decontaminate
from atelier.engine.config.data import Data
from atelier.engine.config.evaluation_set import Pose
from atelier.infra.dag import Reference
from atelier.tasks.assemble import assemble
from atelier.tasks.collect import collect
from atelier.tasks.decontaminate import decontaminate
from atelier.tasks.deduplicate import deduplicate
from atelier.tasks.filter_documents import filter_documents
from atelier.tasks.learn_quality import learn_quality
from atelier.tasks.pose import pose


def curated(data: Data, curation: Curation, evals: Pose | None = None) -> dict[str, Reference]:
    """The corpus of every source. `evals`: how evaluation sets that are searched for are made."""
    sources = data.sources()
    documents = {name: collect(name, source, curation) for name, source in sources.items()}
    filtered = (curation.filtered or [*sources]) if curation.filters else ()
    classifier = learn_quality(documents, curation.quality) if curation.quality is not None else None
    verdicts = {name: filter_documents(name, documents[name], classifier, curation) for name in filtered}
    stages: dict[str, Reference] = {}
    if curation.deduplicate is not None:
        stages["copies"] = deduplicate(documents, verdicts, curation, curation.deduplicate)
    if curation.decontaminate is not None:
        copies, settings = stages.get("copies"), curation.decontaminate
        sets = _posed(settings, evals or Pose())
        stages["overlaps"] = decontaminate(documents, verdicts, copies, curation, settings, sets)
    corpora: dict[str, Reference] = {}
    for name in sources:
        own = {f"verdicts.{name}": verdicts[name]} if name in verdicts else {}
        corpora[name] = assemble(name, documents[name], own | stages, data, curation)
    return corpora


def _posed(settings: Decontaminate, evals: Pose) -> dict[str, Reference]:
    """The evaluation sets that are searched for by name: all questions, without solved examples."""
    whole = evals.model_copy(update={"max_questions": 0})
    words = {name: each.set for name, each in settings.questions.items() if each.set}
    place = "data.curation.decontaminate.questions"
    made = {word: pose(word, whole, shots=0, place=f"{place}.{name}.set") for name, word in words.items()}
    return {name: made[word] for name, word in words.items()}
