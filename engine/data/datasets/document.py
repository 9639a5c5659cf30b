"""A long document in consecutive rows, each with the tokens just before it as memory (ERNIE 3.0 Titan,
2112.12731; the memory of ERNIE-Doc, 2012.15688, recomputed instead of cached).

Shape letters: B rows, T tokens of a row, P pieces of documents, D documents.
"""

from pathlib import Path

import numpy as np

from atelier.engine.config.batch import NOT_SCORED, PADDING
from atelier.engine.config.error import DataError
from atelier.engine.config.objective.document import DocumentLM
from atelier.engine.data.counter_rng import Numbers
from atelier.engine.data.tokens import TokenText, overlapping, pieces_of
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.io.artifact import ArtifactInput


class Pieces:
    """Rows of documents cut into pieces; every token except a document's first is predicted once.

    A document's first piece is a whole row or the whole document; each further piece begins with `memory`
    tokens and predicts the tokens after them. Room left in a row is filled with whole documents that fit;
    only a row's first piece has memory. Rows are the same in all epochs.
    """

    extras = ("memory_BT",)
    part: int | None = None

    def __init__(self, text: TokenText, pad: int, *, sequence: int, memory: int) -> None:
        self._text, self._pad, self.length = text, pad, sequence
        begins_P, sizes_P, memories_P = _cut(text, sequence, memory)
        if not len(begins_P):
            raise DataError(f"{text.source()}: {text.split} has no document to predict; give more text")
        self._begins_P, self._sizes_P, self._memories_P = begins_P, sizes_P, memories_P
        # the first piece of each row, and the number of all pieces
        self._rows = _filled(sizes_P, sequence)

    def __len__(self) -> int:
        return len(self._rows) - 1

    def batch(self, indices: Numbers, epochs: Numbers | None = None) -> dict[str, np.ndarray]:
        rows_B = np.asarray(indices, dtype=np.int64)
        counts_B = self._rows[rows_B + 1] - self._rows[rows_B]
        pieces = np.repeat(self._rows[rows_B], counts_B) + _inside(counts_B)
        sizes = self._sizes_P[pieces]
        inside = _inside(sizes)
        places = np.repeat(self._begins_P[pieces], sizes) + inside
        row = np.repeat(np.repeat(np.arange(len(rows_B)), counts_B), sizes)
        tokens_B = np.bincount(row, minlength=len(rows_B))
        at = row, _inside(tokens_B)
        is_memory = inside < np.repeat(self._memories_P[pieces], sizes)
        shape = (len(rows_B), self.length)
        result = {
            "tokens_BT": np.full(shape, self._pad, dtype=np.int64),
            "positions_BT": np.zeros(shape, dtype=np.int64),
            "documents_BT": np.full(shape, PADDING, dtype=np.int64),
            "labels_BT": np.full(shape, NOT_SCORED, dtype=np.int64),
            "memory_BT": np.zeros(shape, dtype=np.int64),
        }
        result["tokens_BT"][at] = self._text.tokens_N[places]
        result["positions_BT"][at] = inside
        result["documents_BT"][at] = np.repeat(_inside(counts_B), sizes)
        result["labels_BT"][at] = np.where(is_memory, NOT_SCORED, self._text.at(places + 1, NOT_SCORED))
        result["memory_BT"][at] = is_memory
        return result

    def rows_with(self, begin: int, end: int, epoch: int) -> np.ndarray:
        """The rows with pieces that overlap a range of tokens, memory included (blend.py, Dataset); the same
        in all epochs.
        """
        ends_P = self._begins_P + self._sizes_P
        found = overlapping(self._begins_P, ends_P, begin, end)
        rows = np.searchsorted(self._rows, found, side="right") - 1
        return pieces_of(rows, self._begins_P[found], ends_P[found])


def _cut(text: TokenText, sequence: int, memory: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(first token, tokens, memory tokens) of each piece, in text order."""
    step = sequence - memory
    inputs_D = text.lengths_D - 1  # a document's last token predicts nothing
    counts_D = np.where(inputs_D > 0, 1 + np.maximum(0, -(-(inputs_D - sequence) // step)), 0)
    number_P = _inside(counts_D)
    begin_P, inputs_P = np.repeat(text.begins_D, counts_D), np.repeat(inputs_D, counts_D)
    offsets_P = number_P * step  # piece n > 0 predicts from sequence + (n - 1) step on, memory before that
    sizes_P = np.minimum(sequence, inputs_P - offsets_P)
    return begin_P + offsets_P, sizes_P, np.where(number_P > 0, memory, 0)


def _filled(sizes_P: np.ndarray, sequence: int) -> np.ndarray:
    """The first piece of each row, then the number of pieces: rows take pieces in order while they fit.

    A piece with memory begins a row, because its predecessor in the document fills a whole row.
    """
    firsts, used = [], sequence
    for piece, size in enumerate(sizes_P.tolist()):
        if used + size > sequence:
            firsts.append(piece)
            used = 0
        used += size
    return np.array([*firsts, len(sizes_P)], dtype=np.int64)


def _inside(counts: np.ndarray) -> np.ndarray:
    """0 .. c - 1 for each count c, one after the other."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)


def open_rows(
    spec: DocumentLM,
    tokens: ArtifactInput,
    vocabulary: Vocabulary,
    scratch: Path,
    *,
    split: str,
    sequence: int,
    seed: int,
) -> Pieces:
    """The rows of a split."""
    memory = sequence // 4 if spec.memory == "auto" else spec.memory
    return Pieces(TokenText(tokens, scratch, split), vocabulary.pad_id, sequence=sequence, memory=memory)
