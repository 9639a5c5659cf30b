"""The task `assemble`: write the documents of a source that all stages left, each for training or held out,
and count the documents that each stage removed.
"""

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import cast

from atelier.engine.config.base import Json, parse
from atelier.engine.config.curation import KEPT, READ, WaterfallStep
from atelier.engine.config.data import share_note
from atelier.engine.config.error import AtelierError, DataError
from atelier.engine.config.run_file import RunFile
from atelier.engine.config.task.curation import AssembleConfig
from atelier.engine.data.copies import text_group
from atelier.engine.data.corpus import HELD_OUT, TRAIN, CorpusLine, fraction, split_of
from atelier.engine.data.curate import LONGEST, SMALLEST, part_size, parts, runs_of
from atelier.engine.data.curation.sources import SourceShards, source_shards
from atelier.engine.data.curation.spool import Ranks, Spool
from atelier.engine.data.curation.verdicts import DocumentLine, Verdict
from atelier.engine.io.artifact import ArtifactOutput
from atelier.engine.io.process import Progress, output_of
from atelier.engine.io.shards import SHARDS, Counts, ShardWriter, size_of

STAGES = {SHARDS: "filter_documents", "copies": "deduplicate", "overlaps": "decontaminate"}  # by folder
Forced = dict[str, str]  # group -> split, where hashes leave a side empty


def assemble(run: RunFile, progress: Progress, ranks: Ranks) -> tuple[ArtifactOutput, dict[str, Json]] | None:
    """Write shards of CorpusLines. Returns None on other ranks than the first.

    A group is held out if its hash is below the share. A document of more bytes than the whole held-out share
    is split by its parts. Raises DataError for fewer than two groups.
    """
    config = parse(AssembleConfig, run.config, "config")
    found = source_shards(run, {config.name: config.place})
    spool = Spool(run, "corpus", [found.digest, run.config], ranks, progress)
    steps = waterfall(found, config.name)
    _check_left(config.name, steps)
    share = config.held_out * steps[-1]["bytes"]
    split = HeldOutSplit(
        config.held_out, max(2 * SMALLEST, share) if config.is_cut else math.inf, part_size(share)
    )
    spool.each(found.units, lambda unit: _written(found, unit, split, {}, spool.scratch))
    forced: Forced = json.loads(
        spool.once("forced.json", lambda: json.dumps(_forced(spool, found, config.held_out)).encode())
    )
    units = found.units
    if forced:
        units = [f"forced-{unit}" for unit in found.units]
        spool.each(
            units, lambda unit: _written(found, unit.removeprefix("forced-"), split, forced, spool.scratch)
        )
    if not ranks.is_first:
        return spool.leave()
    output = output_of(run, "corpus")
    counts = spool.publish(units, output)
    sides = {side: counts.get(side, {"documents": 0, "bytes": 0}) for side in (TRAIN, HELD_OUT)}
    written = {key: sides[TRAIN][key] + sides[HELD_OUT][key] for key in ("documents", "bytes")}
    if written["bytes"] != steps[-1]["bytes"]:
        left = steps[-1]["bytes"]
        raise AtelierError(f"{config.name}: {written['bytes']} bytes are written, but {left} bytes are left")
    if note := share_note(sides[HELD_OUT]["bytes"], written["bytes"], config.held_out, "data.held_out"):
        progress.warn(note)
    return output, {
        **written,
        "held_out_documents": sides[HELD_OUT]["documents"],
        "held_out_bytes": sides[HELD_OUT]["bytes"],
        "in_parts": counts.get("in_parts", 0),
        "skipped": found.documents[0].record.summary.get("broken", 0),
        "empty": found.documents[0].record.summary.get("empty", 0),
        "waterfall": cast(list[Json], steps),
    }


def _check_left(name: str, steps: list[WaterfallStep]) -> None:
    if not steps[-1]["documents"]:
        reasons = ", ".join(
            f"{step['reason']} {step['documents']}" for step in steps[1:-1] if step["documents"]
        )
        raise DataError(
            f"data.curation: no document of the source {name} is left of {steps[0]['documents']}; removed:"
            f" {reasons}; change the thresholds of data.curation, or leave the source out of them"
        )


class HeldOutSplit:
    """How documents are split. `whole`: a document of more bytes is split by its parts, of about `size`
    characters.
    """

    def __init__(self, held_out: float, whole: float, size: int) -> None:
        self.held_out, self.whole, self.size = held_out, whole, size

    def side(self, group: str, forced: Forced) -> str:
        return forced.get(group) or (HELD_OUT if fraction(group) < self.held_out else TRAIN)

    def lines(
        self, document: DocumentLine, group: str, forced: Forced, *, may_part: bool
    ) -> Iterator[CorpusLine]:
        """The document as one line, or as runs of its parts, which may be on both sides of the split unless
        the document is in a cluster.
        """
        line: CorpusLine = {"group": group, "id": document["id"], "text": document["text"], "split": ""}
        if document.get("cut"):
            line["cut"] = True
        length = len(document["text"])
        apart = may_part and max(size_of(document["text"]), document.get("whole", 0)) > self.whole
        if not apart and length <= LONGEST:
            line["split"] = self.side(group, forced)
            yield line
            return
        pieces = [
            (text_group(text) if apart else group, len(text)) for text in parts(document["text"], self.size)
        ]
        sides = {name: self.side(name, forced) for name, _ in pieces}
        yield from runs_of(line, pieces, sides)


def _written(
    found: SourceShards, unit: str, split: HeldOutSplit, forced: Forced, scratch: Path
) -> Iterable[ShardWriter]:
    """The lines of a shard; counts by split; the groups of least and greatest hash as a note."""
    writer = ShardWriter(scratch / "corpus.zst")
    ends: dict[str, list[tuple[float, str]]] = {"alone": [], "cluster": []}
    for document, verdicts in _with_ends(found.left(unit, scratch)):
        cluster = next((each["cluster"] for each in verdicts if "cluster" in each), "")
        group = cluster or document.get("group", document["key"])
        for piece in kept_pieces(document, verdicts):
            written = list(split.lines(piece, group, forced, may_part=not cluster))
            for line in written:
                writer.write(cast(dict[str, Json], line))
                writer.count_document(size_of(line["text"]), line["split"])
                own = ends["cluster" if line["group"] == cluster else "alone"]
                own.append((fraction(line["group"]), line["group"]))
                own[:] = {min(own), max(own)}
            writer.count("in_parts", amount=int(len(written) > 1))
    writer.extra = {key: [name for _, name in own] for key, own in ends.items()}
    return [writer]


def _with_ends(
    rows: Iterable[tuple[int, DocumentLine, list[Verdict]]],
) -> Iterator[tuple[DocumentLine, list[Verdict]]]:
    """The documents; a part of one is `cut` only if the next part is left as well."""
    before: tuple[int, DocumentLine, list[Verdict]] | None = None
    for each in rows:
        if before is not None:
            if each[0] != before[0] + 1:
                before[1].pop("cut", None)
            yield before[1:]
        before = each
    if before is not None:
        before[1].pop("cut", None)
        yield before[1:]


def _forced(spool: Spool, found: SourceShards, held_out: float) -> Forced:
    """The splits of some groups where hashes leave a side empty; a cluster is forced only without others."""
    parts_of_all = [part for unit in found.units for part in spool.unit(unit) or ()]
    if all(any(side in part["counts"] for part in parts_of_all) for side in (TRAIN, HELD_OUT)):
        return {}
    ends = [cast(dict[str, list[str]], part["extra"]) for part in parts_of_all]
    alone, cluster = ({name for each in ends for name in each[key]} for key in ("alone", "cluster"))
    return split_of(alone if len(alone) > 1 else alone | cluster, held_out, "data.source")


def kept_pieces(document: DocumentLine, verdicts: list[Verdict]) -> Iterator[DocumentLine]:
    """The document, or the pieces that decontamination left of it."""
    pieces = next((each["pieces"] for each in verdicts if "pieces" in each), None)
    if pieces is None:
        yield document
        return
    for number, (begin, end) in enumerate(pieces, start=1):
        piece = DocumentLine(**{**document, "id": f"{document['id']}/{number}"})
        piece["text"] = document["text"][begin:end]
        if end < len(document["text"]):
            piece.pop("cut", None)
        yield piece


def waterfall(found: SourceShards, name: str) -> list[WaterfallStep]:
    """The rows of one source, from `read` to `kept`. Raises AtelierError if counts do not add up."""
    place = found.sources.index(name)
    summary: Counts = {**found.documents[place].record.summary}
    left = WaterfallStep(stage="", reason=KEPT, documents=summary["documents"], bytes=summary["bytes"])
    steps: list[WaterfallStep] = [{**left, "reason": READ}]
    for artifact, folder in found.verdicts[place]:
        stage = STAGES[folder.partition("/")[0]]
        counts: Counts = {**artifact.record.summary}
        counts = counts["sources"].get(name, {}) if "sources" in counts else counts
        for key in ("removed", "cut"):
            for reason, amount in sorted(counts.get(key, {}).items()):
                documents = amount["documents"] if key == "removed" else 0
                step = WaterfallStep(stage=stage, reason=reason, documents=documents, bytes=amount["bytes"])
                steps.append(step)
                left["documents"] -= step["documents"]
                left["bytes"] -= step["bytes"]
        kept = counts.get("kept", {"documents": 0, "bytes": 0})
        if (kept["documents"], kept["bytes"]) != (left["documents"], left["bytes"]):
            raise AtelierError(f"{artifact.url}: keeps {kept} of the source {name}, but {left} are left")
    return [*steps, left]
