"""Rows with two inputs: some tokens for an encoder, and those that follow them. Every third row's encoder
input is shorter, so that padding is read too.
"""

from pathlib import Path

import numpy as np

from atelier.engine.config.batch import ENCODER, NOT_SCORED, PADDING
from atelier.engine.config.objective.rejoin import Rejoin
from atelier.engine.data.counter_rng import Numbers
from atelier.engine.data.tokens import TokenText
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.io.artifact import ArtifactInput


class Rows:
    extras = ENCODER
    part: int | None = None

    def __init__(self, text: TokenText, *, before: int, sequence: int) -> None:
        self._tokens_N, self.length, self.encoder_length = text.tokens_N, sequence, before

    def __len__(self) -> int:
        return (len(self._tokens_N) - 1) // (self.length + self.encoder_length)

    def batch(self, indices: Numbers, epochs: Numbers | None = None) -> dict[str, np.ndarray]:
        rows_B = np.asarray(indices, dtype=np.int64)
        T, U = self.length, self.encoder_length
        taken = self._tokens_N[(rows_B * (T + U))[:, None] + np.arange(T + U + 1)].astype(np.int64)
        places_U, places_T = np.arange(U), np.arange(T)
        is_read_BU = places_U < np.where(rows_B % 3 == 2, U - 2, U)[:, None]
        labels_BT = np.where(places_T < T - rows_B[:, None] % 2, taken[:, U + 1 :], NOT_SCORED)
        return {
            "tokens_BT": taken[:, U:-1],
            "positions_BT": np.tile(places_T, (len(rows_B), 1)),
            "documents_BT": np.zeros((len(rows_B), T), dtype=np.int64),
            "labels_BT": labels_BT,
            "encoder_tokens_BU": np.where(is_read_BU, taken[:, :U], 0),
            "encoder_positions_BU": np.tile(places_U, (len(rows_B), 1)),
            "encoder_documents_BU": np.where(is_read_BU, 0, PADDING),
        }


def open_rows(
    spec: Rejoin,
    tokens: ArtifactInput,
    vocabulary: Vocabulary,
    scratch: Path,
    *,
    split: str,
    sequence: int,
    seed: int,
) -> Rows:
    return Rows(TokenText(tokens, scratch, split), before=spec.before, sequence=sequence)
