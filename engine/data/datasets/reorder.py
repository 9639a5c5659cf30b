"""Sentence reordering: a paragraph is cut into segments at sentence ends and the segments are permuted; the
class is the permutation (ERNIE 3.0, 2107.02137).

Shape letters: B rows, T tokens of a row, D documents.
"""

from pathlib import Path

import numpy as np

from atelier.engine.config.data import CLS, SEP
from atelier.engine.config.error import DataError
from atelier.engine.config.objective.reorder import SHORTEST, Reorder, orders
from atelier.engine.data.counter_rng import Chance, Numbers, numbered, uniform
from atelier.engine.data.tokens import TokenText, packed, segments
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.data.words import Sentences
from atelier.engine.io.artifact import ArtifactInput


class PermutedParagraphs:
    """Rows <|cls|> segment <|sep|> segment ...; classes_B is the class, nothing else is scored; segments_BT
    numbers the segments.

    A document is cut into paragraphs that fit a row; partial sentences at their ends are dropped. All classes
    are equally frequent in an epoch. A paragraph of too few sentences is cut within sentences.
    """

    extras = ("bidirectional_B", "classes_B", "segments_BT")
    part: int | None = None

    def __init__(
        self, text: TokenText, vocabulary: Vocabulary, *, sequence: int, seed: int, max_segments: int
    ) -> None:
        self._room = sequence - max_segments  # without <|cls|> and separators
        sizes_D = np.maximum(text.lengths_D - 1, 0)  # without end token
        rests_D = np.where(sizes_D % self._room >= SHORTEST, 1, 0)
        self._last_D = np.cumsum(sizes_D // self._room + rests_D)
        if not len(self._last_D) or not self._last_D[-1]:
            raise DataError(
                f"{text.source()}: {text.split} has no document of {SHORTEST} tokens; give longer documents"
            )
        self._text, self._sizes_D, self._pad = text, sizes_D, vocabulary.pad_id
        self._cls, self._sep = vocabulary.special(CLS), vocabulary.special(SEP)
        self._sentences = Sentences(vocabulary)
        self._orders = orders(max_segments)
        self._chance = Chance(seed, "reorder", text.split)
        self.length = sequence

    def __len__(self) -> int:
        return int(self._last_D[-1])

    def batch(self, indices: Numbers, epochs: Numbers | None = None) -> dict[str, np.ndarray]:
        rows_B, epochs_B = numbered(indices, epochs)
        classes_B = self._chance.turns(rows_B, epochs_B, len(self), len(self._orders))
        keys_B = self._chance.keys(rows_B, epochs_B)
        rows = [
            self._row(self._orders[kind], *self._paragraph(row)[1:], key)
            for row, kind, key in zip(rows_B.tolist(), classes_B.tolist(), keys_B, strict=True)
        ]
        batch = packed(rows, self.length, self._pad)
        segments_BT = segments(batch["tokens_BT"], batch["documents_BT"], self._cls, self._sep)
        return batch | {"classes_B": classes_B, "segments_BT": segments_BT}

    def rows_with(self, begin: int, end: int, epoch: int) -> np.ndarray:
        """The rows of paragraphs that overlap a range of tokens (blend.py, Dataset); the same in all
        epochs.
        """
        found: list[tuple[int, int, int]] = []
        documents = self._text.documents(np.array([begin, end - 1])) if begin < end else [0, -1]
        for document in range(documents[0], min(documents[1] + 1, len(self._last_D))):
            before = int(self._last_D[document - 1]) if document else 0
            inside = begin - int(self._text.begins_D[document]), end - int(self._text.begins_D[document])
            last = min(int(self._last_D[document]), before - (-inside[1] // self._room))
            for row in range(before + max(0, inside[0] // self._room), last):
                place, tokens, _ = self._paragraph(row)
                if place < end and begin < place + len(tokens):
                    found.append((row, place, place + len(tokens)))
        return np.array(found, dtype=np.int64).reshape(-1, 3)

    def _paragraph(self, row: int) -> tuple[int, np.ndarray, np.ndarray]:
        """A paragraph's place in the text, its tokens, and the positions before which a sentence ends."""
        document = int(np.searchsorted(self._last_D, row, side="right"))
        before = int(self._last_D[document - 1]) if document else 0
        begin = (row - before) * self._room
        end = min(begin + self._room, int(self._sizes_D[document]))
        place = int(self._text.begins_D[document])
        tokens = self._text.tokens_N[place + begin : place + end].astype(np.int64)
        ends = self._sentences.ends(tokens)
        first, last = 0, len(tokens)
        if len(ends) > 1 and begin and ends[0] < last // 3:
            first = int(ends[0])
        if len(ends) > 1 and end < self._sizes_D[document] and ends[-1] > last - last // 3:
            last = int(ends[-1])
        return place + begin + first, tokens[first:last], ends[(ends > first) & (ends < last)] - first

    def _row(
        self, order: tuple[int, ...], tokens: np.ndarray, ends: np.ndarray, key: np.uint64
    ) -> np.ndarray:
        num_cuts = len(order) - 1
        places = ends if len(ends) >= num_cuts else np.arange(1, len(tokens))
        cuts = np.sort(places[np.argsort(uniform(np.asarray(key), places, 1), kind="stable")[:num_cuts]])
        pieces = np.split(tokens, cuts)
        parts = [np.array([self._cls])]
        for place, segment in enumerate(order):
            parts += [np.array([self._sep])] * (place > 0) + [pieces[segment]]
        return np.concatenate(parts)


def open_rows(
    spec: Reorder,
    tokens: ArtifactInput,
    vocabulary: Vocabulary,
    scratch: Path,
    *,
    split: str,
    sequence: int,
    seed: int,
) -> PermutedParagraphs:
    """The rows of a split; `tokens` is a tokens artifact. Raises DataError without enough long documents."""
    text = TokenText(tokens, scratch, split)
    return PermutedParagraphs(text, vocabulary, sequence=sequence, seed=seed, max_segments=spec.max_segments)
