"""The lines of a labels artifact that a fine-tuning drew, without encoding them."""

from pathlib import Path

import numpy as np

from atelier.engine.config.error import DataError
from atelier.engine.data.corpus import TRAIN
from atelier.engine.data.counter_rng import Numbers
from atelier.engine.data.examples import drawn_lines
from atelier.engine.data.tokens import pieces_of
from atelier.engine.io.artifact import ArtifactInput


class DrawnLines:
    """Rows of labelled examples as engine/data/examples.py orders them: row r is line lines_R[r]."""

    length = 1

    def __init__(
        self, labels: ArtifactInput, scratch: Path, *, num_examples: int, draw: int, seed: int
    ) -> None:
        with open(labels.file(f"{TRAIN}.jsonl", scratch), "rb") as file:
            count = sum(1 for line in file if line.strip())
        if num_examples > count or not count:
            raise DataError(f"{labels.url}: {num_examples} examples were drawn, but there are {count}")
        self.lines_R = drawn_lines(count, num_examples, draw=draw, split=TRAIN, seed=seed)
        self._rows = np.argsort(self.lines_R)
        self._sorted = self.lines_R[self._rows]

    def __len__(self) -> int:
        return len(self.lines_R)

    def batch(self, indices: Numbers, epochs: Numbers | None = None) -> dict[str, np.ndarray]:
        """Its lines as tokens."""
        lines_B1 = self.lines_R[np.asarray(indices, dtype=np.int64)][:, None]
        return {"tokens_BT": lines_B1, "documents_BT": np.zeros_like(lines_B1)}

    def rows_with(self, begin: int, end: int, epoch: int) -> np.ndarray:
        """The rows of a range of training lines (blend.py, Dataset)."""
        found = np.arange(*np.searchsorted(self._sorted, [begin, max(begin, end)]))
        lines = self._sorted[found]
        return pieces_of(self._rows[found], lines, lines + 1)
