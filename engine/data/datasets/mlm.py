"""Knowledge masking: <|cls|> and a window of text with some words, phrases and named entities hidden (ERNIE,
1904.09223; ERNIE 3.0, 2107.02137).

Shape letters: B rows, T tokens of a row, X tokens looked at for a row, K ordinary tokens.
"""

from pathlib import Path

import numpy as np

from atelier.engine.config.batch import NOT_SCORED, PADDING
from atelier.engine.config.data import CLS, MASK
from atelier.engine.config.error import DataError
from atelier.engine.config.objective.mlm import MLM
from atelier.engine.data.corpus import TRAIN
from atelier.engine.data.counter_rng import Chance, Numbers, numbered
from atelier.engine.data.masking import hide
from atelier.engine.data.tokens import TokenText, fixed_rows
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.data.words import Spelling, find_phrases, find_words
from atelier.engine.io.artifact import ArtifactInput

EDGE = 2  # tokens read on either side of a row, to find units that it cuts


class Masked:
    """Rows of <|cls|> and T - 1 tokens of one or more documents; labels are the hidden tokens.

    A unit is a word, a phrase of the training text, a name by its spelling (an identifier such as os.path, a
    run of capitalised words), or what the text has marked (engine/data/units.py). White space and units cut
    by the row's edge are never hidden. The last row is padded.
    """

    extras = ("bidirectional_B",)
    part: int | None = None

    def __init__(
        self,
        text: TokenText,
        phrases: np.ndarray,
        vocabulary: Vocabulary,
        *,
        sequence: int,
        seed: int,
        rate: float,
    ) -> None:
        if not len(text):
            raise DataError(f"{text.source()}: {text.split} is empty; give more text")
        self._text, self._phrases, self._rate = text, phrases, rate
        self._spelling = Spelling(vocabulary)
        self._ordinary_K = np.flatnonzero(self._spelling.ordinary_V)
        self._end, self._pad = vocabulary.end_id, vocabulary.pad_id
        self._mask, self._cls = vocabulary.special(MASK), vocabulary.special(CLS)
        self._chance = Chance(seed, "mlm", text.split)
        self.length = sequence
        self._room = sequence - 1

    def __len__(self) -> int:
        return -(-len(self._text) // self._room)

    def batch(self, indices: Numbers, epochs: Numbers | None = None) -> dict[str, np.ndarray]:
        rows_B, epochs_B = numbered(indices, epochs)
        starts_B = rows_B * self._room
        places_BX = starts_B[:, None] + np.arange(-EDGE, self._room + EDGE)
        seen_BX = self._text.at(places_BX, self._end)
        units_BT = self._units(seen_BX, self._text.units_at(places_BX))
        tokens_BT = seen_BX[:, EDGE - 1 : -EDGE].copy()  # one more on the left, for <|cls|>
        tokens_BT[:, 0] = self._cls
        is_text_BT = places_BX[:, EDGE - 1 : -EDGE] < len(self._text)
        units_BT[~is_text_BT] = -1
        targets_B = self._rate * (is_text_BT[:, 1:].sum(1))
        keys_B = self._chance.keys(rows_B, epochs_B)
        hidden_BT, labels_BT = hide(tokens_BT, units_BT, targets_B, keys_B, self._mask, self._ordinary_K)
        positions_BT, documents_BT = self._places(places_BX[:, EDGE:-EDGE], starts_B)
        return {
            "tokens_BT": np.where(is_text_BT, hidden_BT, self._pad),
            "positions_BT": np.where(is_text_BT, positions_BT, 0),
            "documents_BT": np.where(is_text_BT, documents_BT, PADDING),
            "labels_BT": np.where(is_text_BT, labels_BT, NOT_SCORED),
            "bidirectional_B": np.ones_like(rows_B),
        }

    def rows_with(self, begin: int, end: int, epoch: int) -> np.ndarray:
        """The rows that overlap a range of tokens, hidden ones included (blend.py, Dataset); the same in all
        epochs.
        """
        last = len(self._text)
        return fixed_rows(begin, min(end, last), size=self._room, count=len(self), last=last)

    def _units(self, seen_BX: np.ndarray, marks_BX: np.ndarray | None) -> np.ndarray:
        """[B, T] the number of each token's unit; -1 for tokens that may not be hidden."""
        words = find_words(seen_BX, self._spelling, self._phrases, marks_BX)
        units_BX = (np.cumsum(~words.is_linked_W) - 1)[words.words_BT]
        is_cut_BX = (units_BX <= units_BX[:, EDGE - 1, None]) | (units_BX >= units_BX[:, -EDGE, None])
        units_BX[is_cut_BX | self._spelling.is_blank_V[seen_BX]] = -1
        return units_BX[:, EDGE - 1 : -EDGE]

    def _places(self, places_BR: np.ndarray, starts_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Positions and documents [B, T]; <|cls|> belongs to the start of the first document."""
        owners_BR = self._text.documents(np.minimum(places_BR, len(self._text) - 1))
        begins_BR = np.maximum(self._text.begins_of(owners_BR), starts_B[:, None])
        documents_BR = owners_BR - owners_BR[:, :1]
        positions_BR = places_BR - begins_BR + (documents_BR == 0)
        return np.pad(positions_BR, ((0, 0), (1, 0))), np.pad(documents_BR, ((0, 0), (1, 0)))


def open_rows(
    spec: MLM,
    tokens: ArtifactInput,
    vocabulary: Vocabulary,
    scratch: Path,
    *,
    split: str,
    sequence: int,
    seed: int,
) -> Masked:
    """The rows of a split, with phrases of the training text for any split."""
    phrases = find_phrases(
        TokenText(tokens, scratch, TRAIN), Spelling(vocabulary), count=spec.phrase_count, pmi=spec.phrase_bits
    )
    text = TokenText(tokens, scratch, split)
    return Masked(text, phrases, vocabulary, sequence=sequence, seed=seed, rate=spec.rate)
