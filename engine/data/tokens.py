"""Token files: one memory-mapped split of a tokens artifact; documents as windows of equal length; rows of
unequal length as a padded batch.
"""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from atelier.engine.config.batch import NOT_SCORED, PADDING, SHORTEST, num_windows
from atelier.engine.config.error import DataError
from atelier.engine.data.corpus import TRAIN
from atelier.engine.io.artifact import ArtifactInput

UNITS = "{}.units.bin"  # of a split: a mark for each token (engine/data/units.py)


def token_dtype(vocab: int) -> str:
    """The numpy name of the narrowest type that holds every id."""
    return "<u2" if vocab <= 65536 else "<u4"


class TokenText:
    """One split's tokens and documents. Document d is tokens begins_D[d] .. ends_D[d] - 1; the last is its
    end token unless it was cut. Tokens and ends stay in their files, which all ranks of a node share in the
    page cache; `begins_D` takes 8 bytes a document.
    """

    def __init__(self, tokens: ArtifactInput, scratch: Path, split: str) -> None:
        dtype = token_dtype(int(tokens.record.summary["vocab"]))
        path = tokens.file(f"{split}.bin", scratch)
        size = path.stat().st_size // np.dtype(dtype).itemsize
        self.split, self._files, self._scratch = split, tokens, scratch
        self.tokens_N = np.memmap(path, dtype=dtype, mode="r", shape=(size,)) if size else np.zeros(0, dtype)
        ends = tokens.file(f"{split}.ends.npy", scratch)
        self.ends_D = np.load(ends, mmap_mode="r", allow_pickle=False).view(np.ndarray)

    def __len__(self) -> int:
        return len(self.tokens_N)

    @cached_property
    def begins_D(self) -> np.ndarray:
        return np.concatenate([[0], self.ends_D[:-1]]).astype(np.int64)

    def begins_of(self, documents: np.ndarray) -> np.ndarray:
        """The first places of these documents (any shape)."""
        return np.where(documents > 0, self.ends_D[np.maximum(documents, 1) - 1], 0)

    @property
    def lengths_D(self) -> np.ndarray:
        return self.ends_D - self.begins_D

    def documents(self, places: np.ndarray) -> np.ndarray:
        """The index of the document that contains each place (any shape)."""
        return np.searchsorted(self.ends_D, places, side="right")

    def at(self, places: np.ndarray, outside: int) -> np.ndarray:
        """The tokens at `places` (any shape), `outside` for places beyond the text; int64."""
        clipped = np.clip(places, 0, len(self) - 1)
        return np.where(places == clipped, self.tokens_N[clipped].astype(np.int64), outside)

    @cached_property
    def units_N(self) -> np.ndarray | None:
        """The marks of units of the tokens, uint8; None if the text has none."""
        name = UNITS.format(self.split)
        if name not in self._files.names() or not len(self):
            return None
        return np.memmap(self._files.file(name, self._scratch), dtype=np.uint8, mode="r", shape=(len(self),))

    def units_at(self, places: np.ndarray) -> np.ndarray | None:
        """The marks at `places` (any shape), 0 beyond the text; None if the text has none."""
        if self.units_N is None:
            return None
        clipped = np.clip(places, 0, len(self) - 1)
        return np.where(places == clipped, self.units_N[clipped], 0)

    def source(self) -> str:
        """The configuration key of this split's text, for errors."""
        return "data.source" if self.split == TRAIN else "data.held_out"


def overlapping(begins_P: np.ndarray, ends_P: np.ndarray, begin: int, end: int) -> np.ndarray:
    """The numbers of the pieces that overlap a range; neither begins nor ends of pieces may descend."""
    first = np.searchsorted(ends_P, begin, side="right")
    return np.arange(first, max(first, np.searchsorted(begins_P, end, side="left")))


def pieces_of(rows_P: np.ndarray, begins_P: np.ndarray, ends_P: np.ndarray) -> np.ndarray:
    """Rows, begins and ends as the int64 [P, 3] of a data set's `rows_with`."""
    return np.stack([rows_P, begins_P, ends_P], axis=1).astype(np.int64).reshape(-1, 3)


def fixed_rows(begin: int, end: int, *, size: int, count: int, last: int) -> np.ndarray:
    """`rows_with` of `count` rows of `size` each, one after the other, in a source that ends at `last`."""
    rows_P = np.arange(max(0, begin // size), max(0, min(count, -(-end // size))))
    rows_P = rows_P if begin < end else rows_P[:0]
    return pieces_of(rows_P, rows_P * size, np.minimum((rows_P + 1) * size, last))


def rows_of_lines(lines_R: np.ndarray, begin: int, end: int) -> np.ndarray:
    """`rows_with` of rows that are a line each, `lines_R` ascending."""
    found = np.arange(*np.searchsorted(lines_R, [begin, max(begin, end)], side="left"))
    return pieces_of(found, lines_R[found], lines_R[found] + 1)


class Windows:
    """A split of a tokens artifact as windows of `sequence` tokens plus the next one (windows overlap by that
    token).

    A token's label is the next token, unless that belongs to the next document: end tokens are predicted, a
    document's first token is not, because it has no context. Raises DataError if the split is shorter than a
    window.
    """

    def __init__(self, tokens: ArtifactInput, scratch: Path, split: str, sequence: int) -> None:
        text = TokenText(tokens, scratch, split)
        size = len(text)
        if size <= sequence:
            more = "more text" if split == "train" else "a larger data.held_out"
            fits = f", or set train.sequence={size - 1} or less" if size > SHORTEST else ""
            raise DataError(
                f"{text.source()}: {split} has {size} tokens in {len(text.ends_D)} documents, but a window"
                f" needs {sequence + 1}; give {more}{fits}"
            )
        self._text, self._tokens_N = text, text.tokens_N
        self.length = sequence
        self._count = num_windows(size, sequence)

    def __len__(self) -> int:
        return self._count

    def batch(
        self, indices: Sequence[int] | np.ndarray, epochs: Sequence[int] | np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        """The windows at `indices`, the same in all epochs: tokens, positions, documents and labels, each [B,
        T] int64.

        Positions count from the document's start within the window, so they stay below T; documents are
        numbered from 0 in each row.
        """
        starts_B = np.asarray(indices, dtype=np.int64) * self.length
        places_BT = starts_B[:, None] + np.arange(self.length + 1)
        taken_BT = self._tokens_N[places_BT].astype(np.int64)
        owners_BT = self._text.documents(places_BT)
        labels_BT = np.where(owners_BT[:, 1:] == owners_BT[:, :-1], taken_BT[:, 1:], NOT_SCORED)
        begins_BT = np.maximum(self._text.begins_of(owners_BT[:, :-1]), starts_B[:, None])
        return {
            "tokens_BT": np.ascontiguousarray(taken_BT[:, :-1]),
            "positions_BT": places_BT[:, :-1] - begins_BT,
            "documents_BT": owners_BT[:, :-1] - owners_BT[:, :1],
            "labels_BT": labels_BT,
        }

    def rows_with(self, begin: int, end: int, epoch: int) -> np.ndarray:
        """The windows that overlap a range of tokens (blend.py, Dataset); the same in all epochs."""
        size = self.length
        return fixed_rows(begin, end, size=size, count=self._count, last=self._count * size)


def segments(tokens_BT: np.ndarray, documents_BT: np.ndarray, cls: int, sep: int) -> np.ndarray:
    """[B, T] the number of each token's segment, -1 for `cls`, `sep` and padding, in rows <|cls|> segment
    <|sep|> segment ... of one document each.
    """
    is_sep_BT = tokens_BT == sep
    is_text_BT = ~is_sep_BT & (tokens_BT != cls) & (documents_BT != PADDING)
    return np.where(is_text_BT, is_sep_BT.cumsum(1), -1)


def packed(rows: Sequence[np.ndarray], length: int, pad: int) -> dict[str, np.ndarray]:
    """A padded batch with one document per row, bidirectional, without labels: [B, length] int64 and
    bidirectional_B.
    """
    sizes_B = np.array([len(row) for row in rows], dtype=np.int64)
    places_T = np.arange(length)
    is_text_BT = places_T < sizes_B[:, None]
    tokens_BT = np.full(is_text_BT.shape, pad, dtype=np.int64)
    tokens_BT[is_text_BT] = np.concatenate(rows) if len(rows) else 0
    return {
        "tokens_BT": tokens_BT,
        "positions_BT": np.where(is_text_BT, places_T, 0),
        "documents_BT": np.where(is_text_BT, 0, PADDING),
        "labels_BT": np.full_like(tokens_BT, NOT_SCORED),
        "bidirectional_B": np.ones_like(sizes_B),
    }
