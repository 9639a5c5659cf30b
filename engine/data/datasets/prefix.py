"""Prefix language modelling: an encoder reads the beginning of a piece of a document, a decoder predicts the
rest (T5, 1910.10683, section 3.2.3).

Shape letters: B rows, P pieces of documents.
"""

from pathlib import Path

import numpy as np

from atelier.engine.config.batch import ENCODER
from atelier.engine.config.error import DataError
from atelier.engine.config.objective.prefix import PrefixLM
from atelier.engine.data.counter_rng import Chance, Numbers, below, numbered
from atelier.engine.data.pairs import cut_into_pieces, paired
from atelier.engine.data.tokens import TokenText, overlapping, pieces_of
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.io.artifact import ArtifactInput

LEAST = 2  # tokens: one per side


class Continued:
    """Rows of one document piece each, as long as the shorter side allows, cut at a random place that differs
    by epoch. Encoder inputs, and a document's last piece, end with an end token.
    """

    extras = ENCODER
    part: int | None = None

    def __init__(
        self, text: TokenText, vocabulary: Vocabulary, *, encoder: int, sequence: int, seed: int
    ) -> None:
        self._text, self._vocabulary = text, vocabulary
        self.length, self.encoder_length = sequence, encoder
        begins_P, sizes_P = cut_into_pieces(text, min(encoder - 1, sequence), with_end=True)
        is_long_P = sizes_P >= LEAST
        self._begins_P, self._sizes_P = begins_P[is_long_P], sizes_P[is_long_P]
        if not len(self._begins_P):
            raise DataError(f"{text.source()}: {text.split} has no text of {LEAST} tokens; give more")
        self._chance = Chance(seed, "prefix", text.split)

    def __len__(self) -> int:
        return len(self._begins_P)

    def batch(self, indices: Numbers, epochs: Numbers | None = None) -> dict[str, np.ndarray]:
        rows_B, epochs_B = numbered(indices, epochs)
        begins_B, sizes_B = self._begins_P[rows_B], self._sizes_P[rows_B]
        cuts_B = 1 + below(self._chance.keys(rows_B, epochs_B), 0, 0, sizes_B - 1)
        pairs, end = [], [self._vocabulary.end_id]
        for begin, size, cut in zip(begins_B.tolist(), sizes_B.tolist(), cuts_B.tolist(), strict=True):
            ids = self._text.tokens_N[begin : begin + size].astype(np.int64)
            pairs.append(([*ids[:cut], *end], ids[cut:]))
        return paired(
            pairs,
            lengths=(self.encoder_length, self.length),
            start=self._vocabulary.start_id,
            pad=self._vocabulary.pad_id,
        )

    def rows_with(self, begin: int, end: int, epoch: int) -> np.ndarray:
        """The rows of pieces that overlap a range of tokens (blend.py, Dataset); the same in all epochs."""
        ends_P = self._begins_P + self._sizes_P
        found = overlapping(self._begins_P, ends_P, begin, end)
        return pieces_of(found, self._begins_P[found], ends_P[found])


def open_rows(
    spec: PrefixLM,
    tokens: ArtifactInput,
    vocabulary: Vocabulary,
    scratch: Path,
    *,
    split: str,
    sequence: int,
    seed: int,
) -> Continued:
    text = TokenText(tokens, scratch, split)
    return Continued(text, vocabulary, encoder=spec.encoder, sequence=sequence, seed=seed)
