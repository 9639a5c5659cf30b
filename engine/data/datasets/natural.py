"""Natural paragraphs (class 1) and a model's continuations of their beginnings (class 0) (ERNIE 3.0 Titan,
2112.12731, section 3).

Shape letters: B rows, T tokens of a row.
"""

from pathlib import Path
from typing import Literal, TypedDict, cast

import numpy as np

from atelier.engine.config.data import CLS
from atelier.engine.config.error import DataError
from atelier.engine.config.objective.natural import Natural
from atelier.engine.data.counter_rng import Numbers
from atelier.engine.data.tokens import fixed_rows, packed
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.io.artifact import ArtifactInput

IMITATIONS = "imitations.jsonl"
# a row's class is its index here
SIDES: tuple[Literal["generated"], Literal["original"]] = ("generated", "original")


class Imitation(TypedDict):
    """A line of imitations.jsonl: token ids of a paragraph and of a model's continuation; the first `prefix`
    ids are equal.
    """

    split: str
    prefix: int
    temperature: float
    original: list[int]
    generated: list[int]


class NaturalParagraphs:
    """Rows <|cls|> paragraph: row 2 i is the generated version of paragraph i, row 2 i + 1 the original. Both
    begin alike and end with a sentence.
    """

    extras = ("bidirectional_B", "classes_B")
    part: int | None = None

    def __init__(self, lines: list[Imitation], vocabulary: Vocabulary, *, split: str, sequence: int) -> None:
        if not lines:
            raise DataError(f"{IMITATIONS}: no {split} paragraph; request more of them")
        self._lines, self._pad, self._cls = lines, vocabulary.pad_id, vocabulary.special(CLS)
        self.length = sequence

    def __len__(self) -> int:
        return 2 * len(self._lines)

    def batch(self, indices: Numbers, epochs: Numbers | None = None) -> dict[str, np.ndarray]:
        rows_B = np.asarray(indices, dtype=np.int64)
        rows = [self._row(int(row)) for row in rows_B]
        return packed(rows, self.length, self._pad) | {"classes_B": rows_B % 2}

    def rows_with(self, begin: int, end: int, epoch: int) -> np.ndarray:
        """The rows of a range of the split's texts (blend.py, Dataset), of some only the beginning; the same
        in all epochs. Each line has two texts, in the order of SIDES.
        """
        return fixed_rows(begin, end, size=1, count=len(self), last=len(self))

    def _row(self, row: int) -> np.ndarray:
        ids = self._lines[row // 2][SIDES[row % 2]]
        return np.array([self._cls, *ids[: self.length - 1]], dtype=np.int64)


def open_rows(
    spec: Natural,
    tokens: ArtifactInput,
    vocabulary: Vocabulary,
    scratch: Path,
    *,
    split: str,
    sequence: int,
    seed: int,
) -> NaturalParagraphs:
    """The rows of a split; `tokens` is an imitations artifact."""
    lines = cast(list[Imitation], tokens.lines(IMITATIONS, scratch))
    mine = [line for line in lines if line["split"] == split]
    return NaturalParagraphs(mine, vocabulary, split=split, sequence=sequence)
