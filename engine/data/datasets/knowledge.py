"""Universal knowledge-text prediction: a triple and a sentence that states it; either the relation or words
of the sentence are hidden (ERNIE 3.0, 2107.02137).

Shape letters: B rows, T tokens of a row, L lines, F fields of a line, X tokens of all fields of all lines, K
ordinary tokens.
"""

from pathlib import Path
from typing import NotRequired, TypedDict, cast

import numpy as np

from atelier.engine.config.data import CLS, MASK, SEP
from atelier.engine.config.error import DataError
from atelier.engine.config.objective.knowledge import Knowledge
from atelier.engine.data.corpus import TRIPLES
from atelier.engine.data.counter_rng import Chance, Numbers, numbered
from atelier.engine.data.masking import hide
from atelier.engine.data.tokens import packed, rows_of_lines
from atelier.engine.data.units import marks_of
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.data.words import Spelling, find_words
from atelier.engine.io.artifact import ArtifactInput

FIELDS = ("head", "relation", "tail", "text")
SENTENCE = 16  # minimum room for the sentence, in tokens
_NO_PHRASES = np.zeros(0, dtype=np.uint64)


class StatedTriple(TypedDict):
    """A line of triples.jsonl. `units`: characters begin .. end - 1 of each unit of the text."""

    head: str
    relation: str
    tail: str
    text: str
    split: str
    units: NotRequired[list[list[int]]]


class Statements:
    """Rows <|cls|> head <|sep|> relation <|sep|> tail <|sep|> sentence <|sep|>; labels are the hidden tokens.

    Half of an epoch's rows hide the whole relation, the other half words of the sentence, which is cut to
    fit. Triples without room for a sentence are left out.
    """

    extras = ("bidirectional_B",)
    part: int | None = None

    def __init__(
        self,
        lines: list[StatedTriple],
        vocabulary: Vocabulary,
        *,
        split: str,
        sequence: int,
        seed: int,
        rate: float,
    ) -> None:
        fields = vocabulary.encode_all([line[name] for line in lines for name in FIELDS])
        sizes_LF = np.array([len(ids) for ids in fields], dtype=np.int64).reshape(-1, len(FIELDS))
        self._ends_LF = np.cumsum(sizes_LF).reshape(sizes_LF.shape)
        self._begins_LF = self._ends_LF - sizes_LF
        self._ids_X = np.array([i for ids in fields for i in ids], dtype=np.int32)
        self._marks_X = self._marks(lines, vocabulary)
        fits_L = (sizes_LF.min(1) > 0) & (sizes_LF[:, :3].sum(1) + 5 + SENTENCE <= sequence)
        self._lines = np.flatnonzero(fits_L)
        if not len(self._lines):
            raise DataError(
                f"{TRIPLES}: none of its {len(lines)} {split} triples fits in {sequence} tokens; give more"
            )
        self._spelling, self._rate, self._pad = Spelling(vocabulary), rate, vocabulary.pad_id
        self._ordinary_K = np.flatnonzero(self._spelling.ordinary_V)
        self._mask, self._cls, self._sep = map(vocabulary.special, (MASK, CLS, SEP))
        self._chance = Chance(seed, "knowledge", split)
        self.length = sequence

    def __len__(self) -> int:
        return len(self._lines)

    def batch(self, indices: Numbers, epochs: Numbers | None = None) -> dict[str, np.ndarray]:
        rows_B, epochs_B = numbered(indices, epochs)
        hides_relation_B = self._chance.turns(rows_B, epochs_B, len(self), 2) == 0
        result = packed([self._row(line) for line in self._lines[rows_B]], self.length, self._pad)
        tokens_BT = result["tokens_BT"]
        units_BT = self._units(tokens_BT, hides_relation_B, self._marks_of(self._lines[rows_B]))
        # the relation is its row's only unit and always hidden
        targets_B = self._rate * (self._field(tokens_BT) == 3).sum(1)
        keys_B = self._chance.keys(rows_B, epochs_B)
        hidden_BT, labels_BT = hide(tokens_BT, units_BT, targets_B, keys_B, self._mask, self._ordinary_K)
        return result | {"tokens_BT": hidden_BT, "labels_BT": labels_BT}

    def rows_with(self, begin: int, end: int, epoch: int) -> np.ndarray:
        """The rows of a range of the split's triples (blend.py, Dataset), of some only the beginning; the
        same in all epochs.
        """
        return rows_of_lines(self._lines, begin, end)

    def _row(self, line: int) -> np.ndarray:
        parts = [np.array([self._cls])]
        for begin, end in zip(self._begins_LF[line], self._ends_LF[line], strict=True):
            parts += [self._ids_X[begin:end], np.array([self._sep])]
        row = np.concatenate(parts)
        return np.append(row[: self.length - 1], self._sep) if len(row) > self.length else row

    def _field(self, tokens_BT: np.ndarray) -> np.ndarray:
        """[B, T] the field of each token, counted by separators before it; -1 for separators."""
        is_mark_BT = (tokens_BT == self._sep) | (tokens_BT == self._cls)
        return np.where(is_mark_BT, -1, np.cumsum(tokens_BT == self._sep, axis=1))

    def _marks(self, lines: list[StatedTriple], vocabulary: Vocabulary) -> np.ndarray | None:
        """The marks of units of all tokens, [X] uint8; None if no line has units."""
        if not any("units" in line for line in lines):
            return None
        marks_X = np.zeros(len(self._ids_X), dtype=np.uint8)
        for number, line in enumerate(lines):
            _, offsets = vocabulary.located(line["text"])
            begin, end = self._begins_LF[number, -1], self._ends_LF[number, -1]
            spans = [(one, other) for one, other in line.get("units", [])]
            marks_X[begin:end] = marks_of(spans, offsets)
        return marks_X

    def _marks_of(self, lines: np.ndarray) -> np.ndarray | None:
        """[B, T] the marks of rows; None without."""
        if self._marks_X is None:
            return None
        marks_BT = np.zeros((len(lines), self.length), dtype=np.uint8)
        for place, line in enumerate(lines.tolist()):
            sizes_F = self._ends_LF[line] - self._begins_LF[line]
            first = 1 + int(sizes_F[:-1].sum()) + len(FIELDS) - 1  # behind <|cls|> and three separators
            marks_R = self._marks_X[self._begins_LF[line, -1] : self._ends_LF[line, -1]]
            marks_R = marks_R[: self.length - 1 - first]
            marks_BT[place, first : first + len(marks_R)] = marks_R
        return marks_BT

    def _units(
        self, tokens_BT: np.ndarray, hides_relation_B: np.ndarray, marks_BT: np.ndarray | None
    ) -> np.ndarray:
        """[B, T] unit numbers (the relation is one unit); -1 for tokens that may not be hidden, such as the
        last word of a full row, which may be cut.
        """
        words = find_words(tokens_BT, self._spelling, _NO_PHRASES, marks_BT)
        units_BT = (np.cumsum(~words.is_linked_W) - 1)[words.words_BT]
        field_BT = self._field(tokens_BT)
        is_sentence_BT = (field_BT == 3) & ~self._spelling.is_blank_V[tokens_BT]
        is_sentence_BT &= units_BT != units_BT[:, -2:-1]
        numbers_B1 = len(words.first_W) + np.arange(len(tokens_BT))[:, None]
        return np.where(
            hides_relation_B[:, None],
            np.where(field_BT == 1, numbers_B1, -1),
            np.where(is_sentence_BT, units_BT, -1),
        )


def open_rows(
    spec: Knowledge,
    tokens: ArtifactInput,
    vocabulary: Vocabulary,
    scratch: Path,
    *,
    split: str,
    sequence: int,
    seed: int,
) -> Statements:
    """The rows of a split; `tokens` is a triples artifact."""
    lines = cast(list[StatedTriple], tokens.lines(TRIPLES, scratch))
    mine = [line for line in lines if line["split"] == split]
    return Statements(mine, vocabulary, split=split, sequence=sequence, seed=seed, rate=spec.rate)
