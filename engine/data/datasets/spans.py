"""Span corruption: an encoder reads pieces of documents without some spans; a decoder predicts these, each
after the sentinel that replaces it (T5, 1910.10683, section 3.1.4).

Shape letters: B rows, P pieces of documents.
"""

from pathlib import Path

import numpy as np

from atelier.engine.config.batch import ENCODER
from atelier.engine.config.error import DataError
from atelier.engine.config.objective.spans import SENTINELS, Spans, check_sentinels
from atelier.engine.data.counter_rng import Chance, Numbers, numbered, uniform
from atelier.engine.data.pairs import cut_into_pieces, paired
from atelier.engine.data.tokens import TokenText, overlapping, pieces_of
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.io.artifact import ArtifactInput

_KEPT, _SAID = 0, 1  # lanes of random numbers


class Corrupted:
    """Rows of one document piece each, without its end token. Kept and predicted spans alternate, a kept one
    first; their lengths are a random partition. Both sides end with an end token.
    """

    extras = ENCODER
    part: int | None = None

    def __init__(
        self, text: TokenText, spec: Spans, vocabulary: Vocabulary, *, sequence: int, seed: int
    ) -> None:
        self._text, self._spec, self._vocabulary = text, spec, vocabulary
        self.length, self.encoder_length = sequence, spec.encoder
        most = spec.text_tokens(sequence)
        self._begins_P, self._sizes_P = cut_into_pieces(text, most, with_end=False)
        if not len(self._begins_P):
            raise DataError(f"{text.source()}: {text.split} has no text; give more")
        self._sentinels = np.array(sentinels(vocabulary, spec.cut(most)[1]))
        self._chance = Chance(seed, "spans", text.split)

    def __len__(self) -> int:
        return len(self._begins_P)

    def batch(self, indices: Numbers, epochs: Numbers | None = None) -> dict[str, np.ndarray]:
        rows_B, epochs_B = numbered(indices, epochs)
        keys_B = self._chance.keys(rows_B, epochs_B)
        pairs = [self._pair(int(row), keys_B[at : at + 1]) for at, row in enumerate(rows_B)]
        return paired(
            pairs,
            lengths=(self.encoder_length, self.length),
            start=self._vocabulary.start_id,
            pad=self._vocabulary.pad_id,
        )

    def _pair(self, row: int, key_1: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        begin, size = int(self._begins_P[row]), int(self._sizes_P[row])
        ids = self._text.tokens_N[begin : begin + size].astype(np.int64)
        noise, spans = self._spec.cut(size)
        end = np.array([self._vocabulary.end_id])
        if not spans:
            return np.concatenate([ids, end]), end
        kept, said = _partition(size - noise, spans, key_1, _KEPT), _partition(noise, spans, key_1, _SAID)
        sizes = np.stack([kept, said], 1).flatten()
        is_said = np.repeat(np.arange(2 * spans) % 2 == 1, sizes)
        marks = self._sentinels[:spans]
        first = np.insert(ids[~is_said], np.cumsum(kept), marks)
        second = np.insert(ids[is_said], np.cumsum(said) - said, marks)
        return np.concatenate([first, end]), np.concatenate([second, end])

    def rows_with(self, begin: int, end: int, epoch: int) -> np.ndarray:
        """The rows of pieces that overlap a range of tokens (blend.py, Dataset); the same in all epochs."""
        ends_P = self._begins_P + self._sizes_P
        found = overlapping(self._begins_P, ends_P, begin, end)
        return pieces_of(found, self._begins_P[found], ends_P[found])


def _partition(number: int, parts: int, key_1: np.ndarray, lane: int) -> np.ndarray:
    """The sizes of a random partition of `number` items in a row into parts of at least one."""
    order = np.argsort(uniform(key_1, np.arange(number - 1), lane), kind="stable")
    cuts = np.sort(order[: parts - 1]) + 1
    return np.diff(np.concatenate([[0], cuts, [number]]))


def sentinels(vocabulary: Vocabulary, number: int) -> list[int]:
    """The ids of `number` sentinels. Raises ConfigError if the vocabulary has fewer."""
    found = max((_found(vocabulary, name, number) for name in SENTINELS), key=len)
    check_sentinels(len(found), number)
    return found


def _found(vocabulary: Vocabulary, name: str, number: int) -> list[int]:
    found: list[int] = []
    while len(found) < number and (one := vocabulary.find(name.format(n=len(found)))) is not None:
        found.append(one)
    return found


def open_rows(
    spec: Spans,
    tokens: ArtifactInput,
    vocabulary: Vocabulary,
    scratch: Path,
    *,
    split: str,
    sequence: int,
    seed: int,
) -> Corrupted:
    text = TokenText(tokens, scratch, split)
    return Corrupted(text, spec, vocabulary, sequence=sequence, seed=seed)
