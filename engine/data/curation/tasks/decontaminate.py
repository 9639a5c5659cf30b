"""The task `decontaminate`: find word n-grams of evaluation questions in the documents of all sources, and
cut them out (MT-NLG 530B, 2201.11990, section 3.1).

Pass 1: find the n-grams, and count the documents that contain each. Pass 2: cut those that are not common.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import cast

import numpy as np

from atelier.engine.config.base import Json, parse
from atelier.engine.config.curation import Decontaminate
from atelier.engine.config.document import whole_of
from atelier.engine.config.error import DataError
from atelier.engine.config.evaluation_set import QUESTIONS, QuestionLine
from atelier.engine.config.run_file import RunFile
from atelier.engine.config.task.curation import DecontaminateConfig
from atelier.engine.data.curation.cut import cut
from atelier.engine.data.curation.overlap import Matches, Question, QuestionOverlap
from atelier.engine.data.curation.sources import SourceShards, places_of, source_shards
from atelier.engine.data.curation.spool import Ranks, Spool, added
from atelier.engine.data.curation.verdicts import DocumentLine, Verdict, line_of
from atelier.engine.data.row import Column, fields_of
from atelier.engine.data.source_reader import SourceReader
from atelier.engine.io.artifact import ArtifactInput, ArtifactOutput
from atelier.engine.io.process import Progress, input_of, output_of
from atelier.engine.io.shards import Counts, ShardWriter, lines_of, size_of

NAMED = 5  # questions that a verdict names
OVERLAP = "overlap"  # prefix of reasons


def decontaminate(
    run: RunFile, progress: Progress, ranks: Ranks
) -> tuple[ArtifactOutput, dict[str, Json]] | None:
    """Write verdicts for documents that overlap with questions: overlaps/<place of the source>/NNNNN; n-grams
    that are common in the corpus, and questions too short to be found. Returns None on other ranks than the
    first.

    Raises DataError if no question can be found.
    """
    config = parse(DecontaminateConfig, run.config, "config")
    settings = config.decontaminate
    found = source_shards(run, places_of(config.sources))
    sets = {name: input_of(run, f"sets.{name}") for name, each in settings.questions.items() if each.set}
    overlap = QuestionOverlap(_questions(config, sets, Path(run.scratch), progress), words=settings.ngram)
    digests = [each.record.digest for each in sets.values()]
    spool = Spool(run, "overlaps", [found.digest, run.config, *digests], ranks, progress)
    first = [f"found-{unit}" for unit in found.units]
    spool.each(first, lambda name: _found(found, name.removeprefix("found-"), overlap, spool.scratch))
    counts_G = np.zeros(len(overlap), dtype=np.int64)
    for name in first:
        for ngram, count in spool.extra(name):
            counts_G[ngram] += count
    judge = _Judge(overlap, counts_G, settings)
    spool.each(found.units, lambda unit: [judge.verdicts(found, unit, spool, spool.scratch)])
    if not ranks.is_first:
        return spool.leave()
    output = output_of(run, "overlaps")
    counts: Counts = {}
    for place, source in enumerate(config.sources):
        counts[source] = spool.publish(found.of(place), output, f"overlaps/{place}")
    common = overlap.common(counts_G, settings.common)
    output.add_json("common.json", [each._asdict() for each in common])
    output.add_json("uncheckable.json", [each._asdict() for each in overlap.uncheckable])
    _tell(progress, len(common), len(overlap.uncheckable), settings)
    return output, {
        **added(*counts.values()),
        "sources": counts,
        "ngrams": len(overlap),
        "common": len(common),
        "uncheckable": len(overlap.uncheckable),
        "clashes": overlap.clashes,
    }


def _tell(progress: Progress, common: int, uncheckable: int, settings: Decontaminate) -> None:
    if common:
        progress.warn(
            f"{common} n-grams of questions are left where they are, because each lies in {settings.common}"
            " documents or more; common.json of the overlaps lists them"
        )
    if uncheckable:
        progress.warn(
            f"{uncheckable} questions or answers are too short to be found; uncheckable.json of the overlaps"
            " lists them"
        )


def _questions(
    config: DecontaminateConfig, sets: Mapping[str, ArtifactInput], scratch: Path, progress: Progress
) -> Iterator[Question]:
    """All rows of the evaluation sets, with the fields that are there; of those that are artifacts what they
    ask, and the right answers. Raises DataError for a row without fields.
    """
    place = "data.curation.decontaminate"
    for name, each in sorted(sets.items()):
        for line in cast(list[QuestionLine], each.lines(QUESTIONS, scratch)):
            parts = dict.fromkeys((*line["parts"], line["answer_text"]))
            yield Question(name, line["id"], tuple(part for part in parts if part))
    for name, files in config.files.items():
        fields = config.decontaminate.questions[name].fields
        columns = [Column(names=(field,), is_needed=False) for field in (*fields, "id")]
        with SourceReader(on_error="stop", place=place, progress=progress) as reader:
            for path, expected in files:
                for number, where, row in reader.rows(path, expected, columns):
                    parts = tuple(
                        text for field in fields if isinstance(text := row.get(field), str) and text
                    )
                    if not parts:
                        raise DataError(
                            f"{where}: has no text in {', '.join(fields)}; fields there: {fields_of(row)};"
                            f" set {place}.questions.{name}.fields"
                        )
                    yield Question(name, str(row.get("id", number)), parts)


def _found(found: SourceShards, unit: str, overlap: QuestionOverlap, scratch: Path) -> Iterable[ShardWriter]:
    """The matches in the documents left in a shard; its documents and bytes; its counts of n-grams."""
    writer, counts_G = ShardWriter(scratch / "found.zst"), np.zeros(len(overlap), dtype=np.int64)
    for row, document, _ in found.left(unit, scratch):
        writer.count_document(size_of(document["text"]))
        matches = overlap.found(document["text"])
        if len(matches.ngram_M):
            overlap.add_counts(counts_G, matches)
            writer.write({"row": row, "matches": np.stack(matches).tolist()})
    there = np.flatnonzero(counts_G)
    writer.extra = [[int(ngram), int(counts_G[ngram])] for ngram in there]
    return [writer]


class _Judge:
    """Decides on documents with matches, by the counts of n-grams in the whole corpus."""

    def __init__(self, overlap: QuestionOverlap, counts_G: np.ndarray, settings: Decontaminate) -> None:
        self._overlap, self._counts_G, self._settings = overlap, counts_G, settings

    def verdicts(self, found: SourceShards, unit: str, spool: Spool, scratch: Path) -> ShardWriter:
        """The verdicts of a shard. Its texts are read again only if something is cut."""
        writer = ShardWriter(scratch / "verdicts.zst")
        documents, size = spool.documents(f"found-{unit}")
        cuts: dict[int, Matches] = {}
        for line in lines_of(spool.local(f"found-{unit}", 0)):
            matches = Matches(*np.array(line["matches"], dtype=np.int64))
            if self._overlap.spans(matches, self._counts_G, self._settings.common):
                cuts[whole_of(line["row"])] = matches
        for row, document, _ in found.left(unit, scratch) if cuts else ():
            if row in cuts:
                verdict = self._verdict(row, document, cuts[row], writer)
                documents, size = documents - 1, size - verdict["bytes"]
                writer.write(line_of(verdict))
        if documents:
            writer.count("kept", "documents", amount=documents)
            writer.count("kept", "bytes", amount=size)
        return writer

    def _verdict(self, row: int, document: DocumentLine, matches: Matches, writer: ShardWriter) -> Verdict:
        text, settings = document["text"], self._settings
        spans = self._overlap.spans(matches, self._counts_G, settings.common)
        result = cut(
            text,
            spans,
            margin=settings.margin,
            shortest=settings.shortest,
            most_pieces=settings.most_pieces,
        )
        size = size_of(text)
        verdict: Verdict = {
            "row": row,
            "id": document["id"],
            "bytes": size,
            "reason": f"{OVERLAP}.{result.dropped.replace(' ', '_')}" if result.dropped else "",
            "overlaps": self._named(matches),
        }
        if result.dropped:
            writer.count_document(size, "removed", verdict["reason"])
            return verdict
        verdict["pieces"] = [list(piece) for piece in result.pieces]
        writer.count_document(result.kept_bytes, "kept")
        for reason, amount in (("cut", result.overlap_bytes), ("short_piece", result.short_bytes)):
            if amount:
                writer.count("cut", f"{OVERLAP}.{reason}", "bytes", amount=amount)
        return verdict

    def _named(self, matches: Matches) -> list[str]:
        """The first questions that are cut, each with its n-gram."""
        ngrams = dict.fromkeys(
            matches.ngram_M[self._counts_G[matches.ngram_M] < self._settings.common].tolist()
        )
        named: dict[str, str] = {}
        for ngram in ngrams:
            for group, name in self._overlap.questions(ngram):
                named.setdefault(f"{group}/{name}", self._overlap.text(ngram))
            if len(named) >= NAMED:
                break
        return [f"{name}: {text}" for name, text in [*named.items()][:NAMED]]
