"""The task `collect`: read the files of a source into shards of documents."""

import os
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path

from atelier.engine.config.base import Json, parse
from atelier.engine.config.error import DataError
from atelier.engine.config.run_file import RunFile
from atelier.engine.config.task.curation import CollectConfig
from atelier.engine.data.copies import text_group
from atelier.engine.data.curate import LONGEST, parts
from atelier.engine.data.curation.spool import Ranks, Spool
from atelier.engine.data.curation.verdicts import DocumentLine, line_of
from atelier.engine.data.source import Document, documents
from atelier.engine.data.source_reader import SourceReader
from atelier.engine.io.artifact import ArtifactOutput
from atelier.engine.io.process import Progress, output_of
from atelier.engine.io.shards import ShardWriter, size_of
from atelier.engine.io.source_files import sizes_of

SHARD_BYTES = 32 << 20  # of text a shard, by default
LEAST = 8  # shards where there are as many files, so that ranks have work
Prepared = tuple[ArtifactOutput, dict[str, Json]]


def collect(run: RunFile, progress: Progress, ranks: Ranks) -> Prepared | None:
    """Write shards of documents {id, key, text}, with `group` where that is not the key, and `cut` where the
    document continues on the next line. A unit is a run of files; its shards have at most SHARD_BYTES of text
    and one document. Returns None on other ranks than the first.

    Raises DataError if the source has no text.
    """
    config = parse(CollectConfig, run.config, "config")
    files = list(config.files)
    spans = spans_of(sizes_of(files) or [0], config.shards)  # generated text has no files
    spool = Spool(run, "documents", [len(spans), run.config], ranks, progress)
    units = [f"{number:05d}" for number in range(len(spans))]
    spool.each(units, lambda name: _read(config, files, spans[int(name)], spool.scratch))
    if not ranks.is_first:
        return spool.leave()
    output = output_of(run, "documents")
    counts = spool.publish(units, output)
    if not counts.get("kept"):
        left_out = f"{counts.get('broken', 0)} broken lines, {counts.get('empty', 0)} empty texts"
        raise DataError(
            f"data.source: {config.source.source} holds no text ({len(files)} files, {left_out}); give"
            " another data.source"
        )
    return output, {**counts.pop("kept"), **counts}


def spans_of(sizes: list[int], shards: int) -> list[slice]:
    """Runs of files of about equal bytes, each with a file: `shards` of them (0 = one per SHARD_BYTES, at
    least LEAST), or as many as there are files.
    """
    if not sizes:
        return []
    upto = list(accumulate(sizes))
    wanted = shards or max(LEAST, -(-upto[-1] // SHARD_BYTES))
    wanted = min(wanted, len(sizes))
    ends = [0]
    for number in range(1, wanted):
        nearest = bisect_left(upto, upto[-1] * number / wanted) + 1
        if nearest > 1 and upto[nearest - 1] + upto[nearest - 2] > 2 * upto[-1] * number / wanted:
            nearest -= 1  # the end of the file before is nearer
        ends.append(min(max(nearest, ends[-1] + 1), len(sizes) - wanted + number))
    return [slice(begin, end) for begin, end in pairwise([*ends, len(sizes)])]


def _read(
    config: CollectConfig, files: list[tuple[str, str]], within: slice, scratch: Path
) -> Iterator[ShardWriter]:
    """The documents of some files, in as many shards as they need, each given when it is full."""
    writer, number, size = ShardWriter(scratch / "0.zst"), 0, 0
    with open(os.devnull, "w") as nowhere:
        quiet = Progress(nowhere)  # finished shards are the progress
        reader = SourceReader(on_error=config.source.on_error, place="data", progress=quiet)
        with reader:
            for document in documents(config.source, files, reader, within):
                if size >= SHARD_BYTES:
                    yield writer
                    number, size = number + 1, 0
                    writer = ShardWriter(scratch / f"{number}.zst")
                for line in _lines(_changed(document, config, writer)):
                    length = size_of(line["text"])
                    writer.write(line_of(line))
                    writer.count_document(length, "kept")
                    size += length
    for name, amount in {"broken": reader.skipped, "empty": reader.empty}.items():
        if amount:
            writer.count(name, amount=amount)
    for what, amount in reader.notes.items():
        writer.count("web", what, amount=amount)
    if reader.skipped:
        writer.notes.append(f"{reader.skipped} broken rows are left out, the first of them {reader.first}")
    yield writer


def _lines(document: Document) -> Iterator[DocumentLine]:
    """The document as one line, or several of at most LONGEST characters, all but the last `cut`."""
    line: DocumentLine = {"id": document.id, "key": document.key, "text": document.text}
    if document.group != document.key:
        line["group"] = document.group
    if len(document.text) <= LONGEST:
        yield line
        return
    texts = parts(document.text, LONGEST // 2)
    for number, text in enumerate(texts, start=1):
        part: DocumentLine = {**line, "id": f"{document.id}#{number}", "key": text_group(text), "text": text}
        part["group"], part["whole"] = document.group, size_of(document.text)
        if number < len(texts):
            part["cut"] = True
        yield part


def _changed(document: Document, config: CollectConfig, writer: ShardWriter) -> Document:
    """The document with repaired encoding, and without personal data; changes are counted."""
    if not config.repair and not config.personal:
        return document
    from atelier.engine.data.personal import masked  # late: few corpora need them
    from atelier.engine.data.repair import repaired

    text = document.text
    if config.repair:
        text = repaired(text)
        writer.count("repaired", amount=int(text != document.text))
    if config.personal:
        text, found = masked(text)
        for kind, amount in found.items():
            writer.count("masked", kind, amount=amount)
    key = text_group(text)
    group = key if document.group == document.key else document.group
    name = (
        masked(document.id)[0] if config.personal and document.kind == "page" else document.id
    )  # an address
    return replace(document, id=name, text=text, key=key, group=group)
