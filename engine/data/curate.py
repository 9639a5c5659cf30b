"""The task `curate`: read source files into documents.jsonl, each document in the training or the
held-out split.
"""

import hashlib
import json
from collections import Counter
from pathlib import Path

from atelier.engine.config.base import Json
from atelier.engine.config.data import Source
from atelier.engine.config.error import DataError
from atelier.engine.data.corpus import DOCUMENTS, HELD_OUT, TRAIN, split_of
from atelier.engine.data.source import Document, Files, documents
from atelier.engine.data.source_reader import SourceReader
from atelier.engine.io.artifact import ArtifactOutput
from atelier.engine.io.process import Progress
from atelier.engine.io.source_files import total_bytes


def curate(
    source: Source, held_out: float, files: Files, output: ArtifactOutput, scratch: Path, progress: Progress
) -> dict[str, Json]:
    """Write documents.jsonl, a CorpusLine a line. Returns the summary.

    Of exact copies of a text the first by order of files is kept. Memory: one digest and one group per
    document, never the texts. Raises DataError when the source has no text.
    """
    progress.start(total_bytes(files), "bytes")
    scratch.mkdir(parents=True, exist_ok=True)
    unsplit, split = scratch / "unsplit.jsonl", scratch / DOCUMENTS
    kinds: Counter[str] = Counter()
    groups, seen, duplicates = [], set[bytes](), 0
    with (
        SourceReader(on_error=source.on_error, place="data", progress=progress) as reader,
        open(unsplit, "w", encoding="utf-8") as target,
    ):
        for document in documents(source, files, reader):
            digest = hashlib.sha256(document.text.encode()).digest()[:16]
            if digest in seen:
                duplicates += 1
                continue
            seen.add(digest)
            groups.append(document.group)
            kinds[document.kind] += 1
            target.write(_line(document))
    if not groups:
        found = f"{len(files)} files, {reader.skipped} broken lines left out"
        raise DataError(f"data.source: {source.source} holds no text ({found}); give another data.source")
    sizes = _split(unsplit, split, split_of(groups, held_out, "data.source"))
    output.add(DOCUMENTS, split)
    unsplit.unlink()
    split.unlink()
    return {
        "documents": len(groups),
        "bytes": sum(sum(size) for size in sizes.values()),
        "held_out_documents": len(sizes[HELD_OUT]),
        "held_out_bytes": sum(sizes[HELD_OUT]),
        "skipped": reader.skipped,
        "duplicates": duplicates,
        "kinds": dict(sorted(kinds.items())),
    }


def _line(document: Document) -> str:
    return (
        json.dumps({"group": document.group, "id": document.id, "text": document.text}, ensure_ascii=False)
        + "\n"
    )


def _split(unsplit: Path, target: Path, splits: dict[str, str]) -> dict[str, list[int]]:
    """Copy the lines, adding each one's split; returns the UTF-8 bytes of the documents of each split."""
    sizes: dict[str, list[int]] = {TRAIN: [], HELD_OUT: []}
    with open(unsplit, encoding="utf-8", newline="\n") as lines, open(target, "w", encoding="utf-8") as file:
        for text in lines:
            line = json.loads(text)
            line["split"] = splits[line["group"]]
            sizes[line["split"]].append(len(line["text"].encode()))
            file.write(json.dumps(line, ensure_ascii=False, sort_keys=True) + "\n")
    return sizes
