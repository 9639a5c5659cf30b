"""Conversations, one per row; labels are the assistant's text.

Shape letters: B rows, T tokens of a row.
"""

from pathlib import Path

import numpy as np

from atelier.engine.config.batch import NOT_SCORED, PADDING
from atelier.engine.config.error import DataError
from atelier.engine.config.objective.chat import Chat
from atelier.engine.data.counter_rng import Numbers
from atelier.engine.data.tokens import TokenText, rows_of_lines
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.io.artifact import ArtifactInput


class Conversations:
    """Rows of a chats artifact with at most `sequence` + 1 tokens, padded; longer rows are used once
    sequences have grown.
    """

    extras = ()
    part: int | None = None

    def __init__(self, text: TokenText, learned_N: np.ndarray, *, sequence: int, pad: int) -> None:
        self._rows_R = np.flatnonzero(text.lengths_D <= sequence + 1)
        if not len(self._rows_R):
            raise DataError(
                f"chats.source: {text.split} has no conversation of up to {sequence} tokens;"
                " give a longer train.sequence or progressive.sequence"
            )
        self._text, self._learned_N, self._pad = text, learned_N, pad
        self.length = sequence

    def __len__(self) -> int:
        return len(self._rows_R)

    def batch(self, indices: Numbers, epochs: Numbers | None = None) -> dict[str, np.ndarray]:
        rows_B = self._rows_R[np.asarray(indices, dtype=np.int64)]
        begins_B1, ends_B1 = self._text.begins_of(rows_B)[:, None], self._text.ends_D[rows_B][:, None]
        places_BT = begins_B1 + np.arange(self.length)
        is_text_BT = places_BT < ends_B1 - 1
        next_BT = np.where(is_text_BT, places_BT + 1, 0)
        is_learned_BT = is_text_BT & (self._learned_N[next_BT] == 1)
        return {
            "tokens_BT": np.where(is_text_BT, self._text.at(places_BT, self._pad), self._pad),
            "positions_BT": np.where(is_text_BT, places_BT - begins_B1, 0),
            "documents_BT": np.where(is_text_BT, 0, PADDING),
            "labels_BT": np.where(is_learned_BT, self._text.at(next_BT, self._pad), NOT_SCORED),
        }

    def rows_with(self, begin: int, end: int, epoch: int) -> np.ndarray:
        """The rows of a range of conversations, numbered as in the source (blend.py, Dataset); the same in
        all epochs.
        """
        return rows_of_lines(self._rows_R, begin, end)


def open_rows(
    spec: Chat,
    tokens: ArtifactInput,
    vocabulary: Vocabulary,
    scratch: Path,
    *,
    split: str,
    sequence: int,
    seed: int,
) -> Conversations:
    """The rows of a split; `tokens` is a chats artifact."""
    text = TokenText(tokens, scratch, split)
    learned_N = np.memmap(tokens.file(f"{split}.learned.bin", scratch), dtype=np.uint8, mode="r")
    return Conversations(text, learned_N, sequence=sequence, pad=vocabulary.pad_id)
