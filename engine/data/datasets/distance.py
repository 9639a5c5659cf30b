"""Sentence distance: two fragments of whole sentences that are adjacent (class 0), apart in one document (1),
or from two documents (2) (ERNIE 3.0, 2107.02137).

Shape letters: B rows, T tokens of a row, D documents, E documents that are long enough.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from atelier.engine.config.data import CLS, SEP
from atelier.engine.config.error import DataError
from atelier.engine.config.objective.distance import SHORTEST, Distance
from atelier.engine.data.counter_rng import Chance, Numbers, below, numbered
from atelier.engine.data.tokens import TokenText, packed, segments
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.data.words import Sentences
from atelier.engine.io.artifact import ArtifactInput

CELLS = 4  # minimum per document, so that each cell has one that does not touch it
ADJACENT, APART, OTHER = 0, 1, 2
_PLACE, _DOCUMENT = 1, 2  # lanes


class Pair(NamedTuple):
    """Token ranges of a row's two fragments in the split, and its class."""

    a_begin: int
    a_end: int
    b_begin: int
    b_end: int
    kind: int


class Pairs:
    """Rows <|cls|> a <|sep|> b <|sep|>; classes_B is the class, nothing else is scored; segments_BT is 0 in a
    and 1 in b.

    A document is cut into cells of equal width, with borders moved to the next end of a sentence within half
    a cell, if any. Every cell but the last is the `a` of one row; its `b` is the next cell, a cell of the
    document that does not touch it, or a cell of another document. If they are too long, `a` keeps its end
    and `b` its beginning. All classes are equally frequent in an epoch.
    """

    extras = ("bidirectional_B", "classes_B", "segments_BT")
    part: int | None = None

    def __init__(self, text: TokenText, vocabulary: Vocabulary, *, sequence: int, seed: int) -> None:
        self._room = (sequence - 3) // 2
        sizes_D = text.lengths_D - 1  # without end token
        long_E = np.flatnonzero(sizes_D >= CELLS * SHORTEST)
        if len(long_E) < 2:
            raise DataError(
                f"{text.source()}: {text.split} has {len(long_E)} documents of {CELLS * SHORTEST} tokens"
                " or more; at least two are needed"
            )
        self._text, self._pad = text, vocabulary.pad_id
        self._begins_E, self._sizes_E = text.begins_D[long_E], sizes_D[long_E]
        self._widths_E = np.minimum(self._sizes_E // CELLS, self._room)
        self._cells_E = self._sizes_E // self._widths_E
        self._last_E = np.cumsum(self._cells_E - 1)
        self._sentences = Sentences(vocabulary)
        self._cls, self._sep = vocabulary.special(CLS), vocabulary.special(SEP)
        self._chance = Chance(seed, "distance", text.split)
        self._drawn: dict[int, tuple[np.ndarray, ...]] = {}
        self.length = sequence

    def __len__(self) -> int:
        return int(self._last_E[-1])

    def batch(self, indices: Numbers, epochs: Numbers | None = None) -> dict[str, np.ndarray]:
        pairs = self.pairs(indices, epochs)
        taken, cls, sep = self._text.tokens_N, [self._cls], [self._sep]
        rows = [
            np.concatenate([cls, taken[p.a_begin : p.a_end], sep, taken[p.b_begin : p.b_end], sep])
            for p in pairs
        ]
        classes_B = np.array([pair.kind for pair in pairs], dtype=np.int64)
        batch = packed(rows, self.length, self._pad)
        segments_BT = segments(batch["tokens_BT"], batch["documents_BT"], self._cls, self._sep)
        return batch | {"classes_B": classes_B, "segments_BT": segments_BT}

    def rows_with(self, begin: int, end: int, epoch: int) -> np.ndarray:
        """The rows with a fragment that overlaps a range of tokens (blend.py, Dataset)."""
        if epoch not in self._drawn:  # fragments may come from any row: keep the present epoch's
            every = np.arange(len(self))
            self._drawn = {epoch: self._cells(every, np.full_like(every, epoch))}
        owners_E = np.arange(*self._owners(begin, end))
        owner_B, _, b_owner_B, _, _ = columns = self._drawn[epoch]
        near_B = np.flatnonzero(np.isin(owner_B, owners_E) | np.isin(b_owner_B, owners_E))
        found: list[tuple[int, int, int]] = []
        for row, *each in zip(near_B.tolist(), *(column[near_B].tolist() for column in columns), strict=True):
            pair = self._pair(*each)
            ranges = ((pair.a_begin, pair.a_end), (pair.b_begin, pair.b_end))
            found += [(row, *one) for one in ranges if one[0] < end and begin < one[1]]
        return np.array(found, dtype=np.int64).reshape(-1, 3)

    def _owners(self, begin: int, end: int) -> tuple[int, int]:
        """The first long document that overlaps a range of tokens, and the one after the last."""
        first = int(np.searchsorted(self._begins_E + self._sizes_E, begin, side="right"))
        return first, max(first, int(np.searchsorted(self._begins_E, end, side="left")))

    def pairs(self, indices: Numbers, epochs: Numbers | None = None) -> list[Pair]:
        """The fragments of the rows at `indices`."""
        columns = self._cells(*numbered(indices, epochs))
        return [self._pair(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]

    def _cells(self, rows_B: np.ndarray, epochs_B: np.ndarray) -> tuple[np.ndarray, ...]:
        """For each row, [B] each: document and cell of its fragments a and b, and its class."""
        kinds_B = self._chance.turns(rows_B, epochs_B, len(self), 3)
        keys_B = self._chance.keys(rows_B, epochs_B)
        owners_B = np.searchsorted(self._last_E, rows_B, side="right")
        cells_B = rows_B - (self._last_E - self._cells_E + 1)[owners_B]
        # the document's cells without this cell and its neighbours
        num_touching_B = 2 + (cells_B > 0)
        apart_B = below(keys_B, 0, _PLACE, self._cells_E[owners_B] - num_touching_B)
        apart_B = np.where(apart_B < cells_B - 1, apart_B, apart_B + num_touching_B)
        others_B = below(keys_B, 0, _DOCUMENT, len(self._cells_E) - 1)
        others_B += others_B >= owners_B
        strangers_B = below(keys_B, 0, _PLACE, self._cells_E[others_B])
        b_owners_B = np.where(kinds_B == OTHER, others_B, owners_B)
        b_cells_B = np.choose(kinds_B, [cells_B + 1, apart_B, strangers_B])
        return owners_B, cells_B, b_owners_B, b_cells_B, kinds_B

    def _pair(self, owner: int, cell: int, b_owner: int, b_cell: int, kind: int) -> Pair:
        a_begin, a_end = self._border(owner, cell), self._border(owner, cell + 1)
        b_begin, b_end = self._border(b_owner, b_cell), self._border(b_owner, b_cell + 1)
        return Pair(max(a_begin, a_end - self._room), a_end, b_begin, min(b_end, b_begin + self._room), kind)

    def _border(self, owner: int, cell: int) -> int:
        """The token at which a cell begins; the last cell ends with its document."""
        begin, size = int(self._begins_E[owner]), int(self._sizes_E[owner])
        width = int(self._widths_E[owner])
        if cell == 0 or cell >= self._cells_E[owner]:
            return begin if cell == 0 else begin + size
        place = begin + cell * width
        half = place + width // 2
        ends = self._sentences.ends(self._text.tokens_N[place - 1 : half])
        return place - 1 + int(ends[0]) if len(ends) else place


def open_rows(
    spec: Distance,
    tokens: ArtifactInput,
    vocabulary: Vocabulary,
    scratch: Path,
    *,
    split: str,
    sequence: int,
    seed: int,
) -> Pairs:
    """The rows of a split; `tokens` is a tokens artifact. Raises DataError without enough long documents."""
    return Pairs(TokenText(tokens, scratch, split), vocabulary, sequence=sequence, seed=seed)
