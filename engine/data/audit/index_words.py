"""The task `index_words`: index the words of a corpus, so that an audit finds questions in it fast.

Files of a word_index. An entry is a kept run (`kept_runs`) and a document with it; entries ascend by the
run's hash, then by document.

- buckets.npy: number of entries before each value of the hash's first `bits` bits, and all (uint32 or uint64)
- remainders.npy: of each entry the hash's next 16 bits (uint16)
- documents.npy: of each entry the document's line in the corpus (uint32)
- offsets.npy (int64), held_out.npy (bool): of each line its place in its file, unpacked, and its split
- index.json: the corpus, the method, the first line of each file, counts

Two passes with bounded memory: sort the entries of some text and write them to scratch; then merge one range
of hashes after another. The result depends on the corpus alone.

Shape letters: W words, K kept runs of some text, E entries, S segments (texts of documents).
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from unicodedata import unidata_version

import numpy as np

from atelier.engine.config.base import Json
from atelier.engine.config.error import DataError
from atelier.engine.data.audit.documents import CorpusDocument, CorpusReader, corpus_files, documents_of
from atelier.engine.data.audit.kept_runs import RUN, WINDOW, kept_runs
from atelier.engine.data.curation.word_hashes import find_words, without_markup
from atelier.engine.io.artifact import ArtifactInput, ArtifactOutput
from atelier.engine.io.process import Progress

INDEX = "index.json"
REMAINDER = 16  # bits
KEY_BITS = 48  # of a hash that are sorted: at most 32 of the buckets, and the remainder's
_TEXT = 1 << 20  # characters whose words are found at once
_ENTRIES = 1 << 20  # sorted at once
_SEGMENTS = 1 << 16  # of a sorted piece: as many as the low bits of a key tell apart
_PER_BUCKET = 4  # bits: 8 to 16 entries
_BETWEEN = "\n"  # between texts; part of no word
_HEADER = 128  # bytes


def index_words(
    corpus: ArtifactInput, output: ArtifactOutput, scratch: Path, progress: Progress, window: int = WINDOW
) -> dict[str, Json]:
    """Write the index of a corpus. Returns the summary."""
    progress.start(int(corpus.record.summary.get("documents", 0)), "documents")
    scratch.mkdir(parents=True, exist_ok=True)
    reader = CorpusReader(corpus, scratch)
    pieces = SortedPieces(scratch / "pieces.bin", window)
    for batch in _batches(documents_of(reader.lines())):
        pieces.add(batch)
        progress.advance(len(batch))
    pieces.end()
    places = reader.places()
    if len(places.offset_D) >= 1 << 32:
        raise DataError(f"data.source: {len(places.offset_D)} documents; an index takes at most {1 << 32}")
    bits = min(max(pieces.num_entries.bit_length() - _PER_BUCKET, 8), KEY_BITS - REMAINDER)
    files = {name: _Column(scratch / f"{name}.npy", dtype) for name, dtype in _columns(pieces).items()}
    progress.start(pieces.num_entries, "entries")
    num_entries = 0
    for counts, remainder_E, document_E in pieces.merged(bits):
        files["buckets"].append(num_entries + np.cumsum(counts) - counts)
        files["remainders"].append(remainder_E)
        files["documents"].append(document_E)
        num_entries += len(document_E)
        progress.advance(len(document_E))
    files["buckets"].append(np.array([num_entries]))
    files["offsets"].append(places.offset_D)
    files["held_out"].append(places.is_held_out_D)
    pieces.remove()
    size = sum(column.add_to(output) for column in files.values())
    counts = {"documents": len(places.offset_D), "entries": num_entries}
    document = {
        "schema": 1, "corpus": corpus.record.fingerprint, "run": RUN, "window": window, "bits": bits,
        "unicode": unidata_version, "files": dict(
            zip(corpus_files(corpus), places.first_F.tolist(), strict=True)), **counts,
    }  # fmt: skip
    output.add_json(INDEX, document)
    return {**counts, "text_bytes": reader.num_bytes, "index_bytes": size}


def _columns(pieces: "SortedPieces") -> dict[str, str]:
    return {
        "buckets": "<u4" if pieces.num_entries < 1 << 32 else "<u8",
        "remainders": "<u2",
        "documents": "<u4",
        "offsets": "<i8",
        "held_out": "|b1",
    }


def _batches(documents: Iterable[CorpusDocument]) -> Iterator[list[CorpusDocument]]:
    """About _TEXT characters at a time."""
    batch: list[CorpusDocument] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document.text)
        if size >= _TEXT:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class SortedPieces:
    """Entries of some documents, sorted, in a scratch file: keys (uint64) of KEY_BITS bits of a run's hash
    and the number of a segment in its piece.
    """

    def __init__(self, path: Path, window: int) -> None:
        self._path, self._window = path, window
        self._keys: list[np.ndarray] = []
        self._size = 0
        self._documents: list[int] = []  # of each segment of the piece
        self._pieces: list[tuple[int, np.ndarray]] = []  # entries before, and documents by segment
        self.num_entries = 0
        path.write_bytes(b"")

    def add(self, documents: Iterable[CorpusDocument]) -> None:
        """A document is a segment as a reader sees it and, if it has tags with attributes, as it is
        written.
        """
        texts: list[str] = []
        places: list[int] = []
        for document in documents:
            plain, has_attributes = without_markup(document.text)
            seen = [plain, document.text] if has_attributes else [plain]
            texts += seen
            places += [document.place] * len(seen)
        for first in range(0, len(texts), _SEGMENTS):
            self._add(texts[first : first + _SEGMENTS], places[first : first + _SEGMENTS])

    def _add(self, texts: list[str], places: list[int]) -> None:
        if len(self._documents) + len(texts) > _SEGMENTS or self._size > _ENTRIES:
            self.end()
        words = find_words(_BETWEEN.join(texts))
        end_S = np.cumsum([len(text) + len(_BETWEEN) for text in texts])
        num_S = np.diff(np.searchsorted(words.begin_W, end_S), prepend=0)
        segment_W = np.repeat(np.arange(len(texts), dtype=np.uint32), num_S)
        hash_K, segment_K = kept_runs(words.hash_W, segment_W, self._window)
        low = np.uint64(64 - KEY_BITS)
        self._keys.append(hash_K >> low << low | (segment_K + np.uint32(len(self._documents))))
        self._size += len(hash_K)
        self._documents += places

    def end(self) -> None:
        """Write the piece."""
        if not self._documents:
            return
        keys = np.concatenate(self._keys)
        keys.sort()
        with open(self._path, "ab") as file:
            _without_copies(keys).tofile(file)
            upto = file.tell() // keys.itemsize
        self._pieces.append((self.num_entries, np.array(self._documents, dtype=np.uint32)))
        self.num_entries = upto
        self._keys, self._size, self._documents = [], 0, []

    def merged(self, bits: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Ranges of hashes in order: entries of each bucket; of each entry the remainder and document."""
        if not self.num_entries:
            yield np.zeros(1 << bits, dtype=np.int64), np.zeros(0, np.uint16), np.zeros(0, np.uint32)
            return
        above = max(bits - REMAINDER, (self.num_entries // _ENTRIES).bit_length())  # bits of a range
        kept = bits + REMAINDER - above  # at most 32, so that a document's number fits beside them
        begins = [first for first, _ in self._pieces]
        ends = [*begins[1:], self.num_entries]
        for number in range(1 << above):
            last = np.uint64((number + 1 << 64 - above) - 1)
            found = []
            for piece, (_, document_S) in enumerate(self._pieces):
                left = ends[piece] - begins[piece]
                keys = self._read(begins[piece], ends[piece], last, left // ((1 << above) - number))
                begins[piece] += len(keys)
                document = document_S[keys & np.uint64(_SEGMENTS - 1)].astype(np.uint64)
                hashes = keys << np.uint64(above) >> np.uint64(64 - kept)
                found.append(hashes << np.uint64(32) | document)
            every = np.concatenate(found)
            every.sort()
            every = _without_copies(every)
            buckets = (every >> np.uint64(32 + REMAINDER)).astype(np.int64)
            yield (
                np.bincount(buckets, minlength=1 << (bits - above)),
                (every >> np.uint64(32)).astype(np.uint16),
                every.astype(np.uint32),
            )

    def _read(self, begin: int, end: int, last: np.uint64, expected: int) -> np.ndarray:
        """The entries from `begin`, before `end`, of which the key is at most `last`: about `expected`."""
        count = expected + expected // 8 + 64
        while True:
            count = min(count, end - begin)
            keys = np.fromfile(self._path, dtype=np.uint64, count=count, offset=begin * 8)
            if count == end - begin or keys[-1] > last:
                return keys[: np.searchsorted(keys, last, side="right")]
            count *= 2

    def remove(self) -> None:
        self._path.unlink()


def _without_copies(sorted_keys: np.ndarray) -> np.ndarray:
    is_new = np.ones(len(sorted_keys), dtype=bool)
    is_new[1:] = sorted_keys[1:] != sorted_keys[:-1]
    return sorted_keys[is_new]


class _Column:
    """An array that grows in a .npy file."""

    def __init__(self, path: Path, dtype: str) -> None:
        self._path, self._dtype, self._count = path, np.dtype(dtype), 0
        path.write_bytes(bytes(_HEADER))

    def append(self, values: np.ndarray) -> None:
        self._count += len(values)
        with open(self._path, "ab") as file:
            values.astype(self._dtype).tofile(file)

    def add_to(self, output: ArtifactOutput) -> int:
        """Complete the file and move it to the output. Returns its bytes."""
        with open(self._path, "r+b") as file:
            header = {
                "descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False,
                "shape": (self._count,),
            }  # fmt: skip
            np.lib.format.write_array_header_1_0(file, header)
            if file.tell() != _HEADER:
                raise ValueError(f"{self._path}: a header of {file.tell()} bytes, but {_HEADER} are reserved")
        output.add(self._path.name, self._path)
        size = self._path.stat().st_size
        self._path.unlink()
        return size
