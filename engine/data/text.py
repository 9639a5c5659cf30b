"""One split of a tokens artifact, memory-mapped, and where its documents lie.

Shape letters: N tokens of the split, D documents of the split.
"""

from pathlib import Path

import numpy as np

from atelier.engine.artifact import Input
from atelier.engine.data.split import TRAIN


def token_dtype(vocab: int) -> str:
    """The numpy name of the narrowest type that holds every id."""
    return "<u2" if vocab <= 65536 else "<u4"


class Text:
    """`tokens_N`, and `begins_D`, `ends_D`: document d is tokens begins_D[d] .. ends_D[d] - 1, the last of
    which is its end token.
    """

    def __init__(self, tokens: Input, scratch: Path, split: str) -> None:
        dtype = token_dtype(int(tokens.record.summary["vocab"]))
        path = tokens.file(f"{split}.bin", scratch)
        size = path.stat().st_size // np.dtype(dtype).itemsize
        self.split = split
        self.tokens_N = np.memmap(path, dtype=dtype, mode="r", shape=(size,)) if size else np.zeros(0, dtype)
        self.ends_D = np.load(tokens.file(f"{split}.ends.npy", scratch), allow_pickle=False)
        self.begins_D = np.concatenate([[0], self.ends_D[:-1]]).astype(np.int64)

    def __len__(self) -> int:
        return len(self.tokens_N)

    @property
    def lengths_D(self) -> np.ndarray:
        return self.ends_D - self.begins_D

    def documents(self, places: np.ndarray) -> np.ndarray:
        """The number of the document that each place (any shape) lies in."""
        return np.searchsorted(self.ends_D, places, side="right")

    def at(self, places: np.ndarray, outside: int) -> np.ndarray:
        """The tokens at `places` (any shape), `outside` where there is no such place; int64."""
        clipped = np.clip(places, 0, len(self) - 1)
        return np.where(places == clipped, self.tokens_N[clipped].astype(np.int64), outside)

    def source(self) -> str:
        """The setting that this split's text comes from, for errors."""
        return "data.source" if self.split == TRAIN else "data.held_out"
