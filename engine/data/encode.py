"""The task `encode`: write a corpus as token files, with the end token after each document that was not cut.

Files per split: `<split>.bin` (little-endian uint16, or uint32 above 65,536 ids), `<split>.ends.npy` (int64,
number of tokens up to and including each document's last) and `held_out.bytes.npy` (int64, UTF-8 bytes of
each held-out document). With units of masking (engine/data/units.py) also `<split>.units.bin`, a byte for
each token. If the tokenizer changes held-out text (lower case, lost spaces), also `held_out.txt`, the
original documents one after another.
"""

import io
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import numpy as np

from atelier.engine.config.base import Json
from atelier.engine.data.corpus import HELD_OUT, TRAIN, CorpusLine, corpus_lines
from atelier.engine.data.tokens import UNITS, token_dtype
from atelier.engine.data.units import UnitFinder, marks_of
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.io.artifact import ArtifactInput, ArtifactOutput
from atelier.engine.io.process import Progress

BATCH_BYTES = 1 << 21
ORIGINAL = f"{HELD_OUT}.txt"


class _Split:
    """One split's growing files."""

    def __init__(self, file: IO[bytes], units: IO[bytes]) -> None:
        self.file, self.units = file, units
        self.lengths: list[int] = []
        self.bytes: list[int] = []

    @property
    def tokens(self) -> int:
        return sum(self.lengths)


def encode(
    corpus: ArtifactInput,
    vocabulary: Vocabulary,
    output: ArtifactOutput,
    scratch: Path,
    progress: Progress,
    units: UnitFinder | None = None,
    sources: int = 1,
) -> dict[str, Json]:
    """Write the token files of both splits. Returns the summary. Raises DataError if the names of entities
    occur nowhere and the text has no other of its `sources`.
    """
    progress.start(int(corpus.record.summary.get("documents", 0)), "documents")
    scratch.mkdir(parents=True, exist_ok=True)
    dtype, began, num_changed = token_dtype(vocabulary.size), time.monotonic(), 0
    paths = {name: scratch / f"{name}.bin" for name in (TRAIN, HELD_OUT)}
    marked = {name: scratch / UNITS.format(name) for name in (TRAIN, HELD_OUT)}
    with ExitStack() as stack:
        original, *files = (
            stack.enter_context(open(path, "wb"))
            for path in (scratch / ORIGINAL, *paths.values(), *marked.values())
        )
        splits = {name: _Split(files[n], files[n + 2]) for n, name in enumerate(paths)}
        for batch in _batches(corpus, scratch):
            for line, ids, marks in _encoded(batch, vocabulary, units):
                if line["split"] == HELD_OUT:
                    original.write(line["text"].encode())
                    num_changed += not vocabulary.is_exact(line["text"], ids)
                end = () if line.get("cut") else (vocabulary.end_id,)
                split = splits[line["split"]]
                split.units.write(bytes(len(vocabulary.before)) + marks + bytes(len(end)))
                _append(split, [*vocabulary.before, *ids, *end], dtype, len(line["text"].encode()))
            progress.advance(len(batch))
    seconds = time.monotonic() - began
    if num_changed:
        output.add(ORIGINAL, scratch / ORIGINAL)
    (scratch / ORIGINAL).unlink()
    if units is not None:
        units.check("data.units.entities", corpus.record.name, progress, sources)
        for path in marked.values():
            output.add(path.name, path)
    for path in marked.values():
        path.unlink()
    for name, path in paths.items():
        output.add(path.name, path)
        path.unlink()
        output.add_bytes(f"{name}.ends.npy", _npy(np.cumsum(splits[name].lengths, dtype=np.int64)))
    output.add_bytes(f"{HELD_OUT}.bytes.npy", _npy(np.array(splits[HELD_OUT].bytes, dtype=np.int64)))
    counts = {f"{name}_tokens": split.tokens for name, split in splits.items()}
    changed = {"held_out_changed": num_changed} if num_changed else {}
    if units is not None:
        changed |= {"names_found": len(units.names.found)}
        changed |= {"names": len(units.names), "names_too_short": units.names.num_short}
    return (
        counts
        | changed
        | {
            "train_documents": len(splits[TRAIN].lengths),
            "held_out_documents": len(splits[HELD_OUT].lengths),
            "train_bytes": sum(splits[TRAIN].bytes),
            "held_out_bytes": sum(splits[HELD_OUT].bytes),
            "dtype": "uint16" if dtype == "<u2" else "uint32",
            "vocab": vocabulary.size,
            "end": vocabulary.end_id,
            "tokens_per_s": round(sum(counts.values()) / max(seconds, 1e-9)),
        }
    )


def _batches(corpus: ArtifactInput, scratch: Path) -> Iterator[list[CorpusLine]]:
    """Documents in order, about BATCH_BYTES of text at a time."""
    batch, size = [], 0
    for line in corpus_lines(corpus, scratch):
        batch.append(line)
        size += len(line["text"])
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _encoded(
    batch: list[CorpusLine], vocabulary: Vocabulary, units: UnitFinder | None
) -> Iterator[tuple[CorpusLine, list[int], bytes]]:
    """Each document with its ids, and their marks if there are units."""
    texts = [line["text"] for line in batch]
    if units is None:
        rows = vocabulary.encode_all(texts)
        yield from ((line, ids, b"") for line, ids in zip(batch, rows, strict=True))
        return
    for line, text in zip(batch, texts, strict=True):
        ids, offsets = vocabulary.located(text)
        yield line, ids, marks_of(units.spans(text), offsets).tobytes()


def _append(split: _Split, ids: list[int], dtype: str, size: int) -> None:
    split.file.write(np.array(ids, dtype=dtype).tobytes())
    split.lengths.append(len(ids))
    split.bytes.append(size)


def _npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array.astype("<i8"), allow_pickle=False)
    return buffer.getvalue()
