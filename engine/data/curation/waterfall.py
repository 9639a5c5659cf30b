"""The waterfall of a source: documents and bytes that were read, removed by reason, and kept."""

from typing import TypedDict

from atelier.engine.config.error import AtelierError
from atelier.engine.data.curation.sources import SourceShards
from atelier.engine.io.shards import SHARDS, Counts

READ, LEFT = "read", "kept"
STAGES = {SHARDS: "filter_documents", "copies": "deduplicate", "overlaps": "decontaminate"}  # by folder


class Step(TypedDict):
    """A row: documents and UTF-8 bytes. Reasons that cut text out of kept documents remove 0 documents."""

    stage: str  # the task that removed them; '' for the first and the last row
    reason: str
    documents: int
    bytes: int


def waterfall(found: SourceShards, name: str) -> list[Step]:
    """The rows of one source, from `read` to `kept`. Raises AtelierError if counts do not add up."""
    place = found.sources.index(name)
    summary = found.documents[place].record.summary
    left: Step = {"stage": "", "reason": LEFT, "documents": summary["documents"], "bytes": summary["bytes"]}
    steps: list[Step] = [{**left, "reason": READ}]
    for artifact, folder in found.verdicts[place]:
        stage = STAGES[folder.partition("/")[0]]
        counts: Counts = artifact.record.summary
        counts = counts["sources"].get(name, {}) if "sources" in counts else counts
        for key in ("removed", "cut"):
            for reason, amount in sorted(counts.get(key, {}).items()):
                documents = amount["documents"] if key == "removed" else 0
                steps.append(
                    {"stage": stage, "reason": reason, "documents": documents, "bytes": amount["bytes"]}
                )
                left = {
                    **left,
                    "documents": left["documents"] - documents,
                    "bytes": left["bytes"] - amount["bytes"],
                }
        kept = counts.get("kept", {"documents": 0, "bytes": 0})
        if (kept["documents"], kept["bytes"]) != (left["documents"], left["bytes"]):
            raise AtelierError(f"{artifact.url}: keeps {kept} of the source {name}, but {left} are left")
    return [*steps, left]
