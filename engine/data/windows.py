"""Packed documents as windows of equal length, read from memory-mapped token files.

Shape letters: B windows, T tokens of a window, N tokens of the split, D documents of the split.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from atelier.engine.artifact import Input
from atelier.engine.data.text import Text
from atelier.engine.spec.error import DataError

NOT_SCORED = -100
PADDING = -1


class Windows:
    """A split of a tokens artifact, cut into windows of `sequence` tokens and the one that follows (they
    overlap by that one token).

    The label of a token is the one after it, unless that belongs to the next document: an end token is
    predicted, what comes after an end token is not, because it cannot see what came before. So each
    document's first token is never scored.
    """

    def __init__(self, tokens: Input, scratch: Path, split: str, sequence: int) -> None:
        text = Text(tokens, scratch, split)
        size = len(text)
        if size <= sequence:
            more = "more text" if split == "train" else "a larger data.held_out"
            raise DataError(
                f"{text.source()}: {split} has {size} tokens in {len(text.ends_D)} documents, a window needs"
                f" {sequence + 1}; give {more}, or set train.sequence={max(size - 1, 1)} or less"
            )
        self._tokens_N, self._ends_D = text.tokens_N, text.ends_D
        self._begins_D = np.concatenate([[0], text.ends_D])
        self.length = sequence
        self._count = (size - 1) // sequence

    def __len__(self) -> int:
        return self._count

    def batch(
        self, indices: Sequence[int] | np.ndarray, epochs: Sequence[int] | np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        """The windows at `indices`, the same in all epochs: tokens, positions, documents and labels, each
        [B, T] int64.

        Positions count from where the document begins in the window, so they stay below T; documents are
        numbered from 0 in each row.
        """
        starts_B = np.asarray(indices, dtype=np.int64) * self.length
        places_BT = starts_B[:, None] + np.arange(self.length + 1)
        taken_BT = self._tokens_N[places_BT].astype(np.int64)
        owners_BT = np.searchsorted(self._ends_D, places_BT, side="right")
        labels_BT = np.where(owners_BT[:, 1:] == owners_BT[:, :-1], taken_BT[:, 1:], NOT_SCORED)
        begins_BT = np.maximum(self._begins_D[owners_BT[:, :-1]], starts_B[:, None])
        return {
            "tokens_BT": np.ascontiguousarray(taken_BT[:, :-1]),
            "positions_BT": places_BT[:, :-1] - begins_BT,
            "documents_BT": owners_BT[:, :-1] - owners_BT[:, :1],
            "labels_BT": labels_BT,
        }
