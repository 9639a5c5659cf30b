"""Random numbers by place: a pure function of (seed, names, row, epoch, place), whatever is asked with it.

Shape letters: B rows, T places of a row.
"""

from collections.abc import Sequence

import numpy as np

from atelier.engine.data.permute import Permutation, mixed
from atelier.engine.spec.seed import seed_of

Numbers = Sequence[int] | np.ndarray
_STEP = np.uint64(0x9E3779B97F4A7C15)


class Chance:
    """The generator called (seed, names). splitmix64, counted instead of stepped (Steele, Lea and Flood
    2014).
    """

    def __init__(self, seed: int, *names: str | int) -> None:
        self._seed, self._names = seed, names
        self._key = np.uint64(seed_of(seed, *names))

    def keys(self, rows_B: np.ndarray, epochs_B: np.ndarray) -> np.ndarray:
        """A uint64 for each row in its epoch, which `uniform` takes."""
        row_B = mixed(self._key + np.asarray(rows_B).astype(np.uint64) * _STEP)
        return mixed(row_B + (np.asarray(epochs_B).astype(np.uint64) + np.uint64(1)) * _STEP)

    def turns(self, rows_B: np.ndarray, epochs_B: np.ndarray, size: int, count: int) -> np.ndarray:
        """One of 0..count-1 for each row of `size` in its epoch; each comes equally often, within one."""
        result_B = np.empty(len(rows_B), dtype=np.int64)
        for epoch in np.unique(epochs_B).tolist():
            mine_B = epochs_B == epoch
            order = Permutation(size, self._seed, *self._names, "turns", epoch)
            result_B[mine_B] = order(rows_B[mine_B]) % count
        return result_B


def uniform(keys: np.ndarray, places: np.ndarray | int, lane: int) -> np.ndarray:
    """Numbers in [0, 1) for rows' keys and places that fit their shape; every lane is another number."""
    with np.errstate(over="ignore"):
        offset = np.asarray(places).astype(np.uint64) * _STEP + np.uint64(lane << 40)
        return (mixed(mixed(keys + offset) ^ keys) >> np.uint64(11)) * 2.0**-53


def below(keys: np.ndarray, places: np.ndarray | int, lane: int, sizes: np.ndarray | int) -> np.ndarray:
    """Whole numbers 0 .. sizes - 1, likewise."""
    return np.minimum((uniform(keys, places, lane) * sizes).astype(np.int64), np.asarray(sizes) - 1)


def numbered(indices: Numbers, epochs: Numbers | None) -> tuple[np.ndarray, np.ndarray]:
    """Indices and their epochs as int64 [B]; epoch 0 where none are given."""
    rows_B = np.asarray(indices, dtype=np.int64)
    return rows_B, np.zeros_like(rows_B) if epochs is None else np.asarray(epochs, dtype=np.int64)
