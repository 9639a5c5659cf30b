"""A keyed pseudo-random order of 0..size-1 that is computed one place at a time: nothing is stored, nothing
is shuffled.
"""

import numpy as np

from atelier.engine.spec.seed import seed_of

ROUNDS = 6
_M1, _M2, _GOLD = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB), 0x9E3779B97F4A7C15


class Permutation:
    """A bijection of 0..size-1 chosen by (seed, names).

    A Feistel network over the next power of four permutes; a result outside the range is sent through again
    until it falls inside (cycle walking, Black and Rogaway 2002), which keeps it a bijection. Under four
    passes a place on average.
    """

    def __init__(self, size: int, seed: int, *names: str | int) -> None:
        self._size = size
        self._half = np.uint64(max(1, ((max(size, 2) - 1).bit_length() + 1) // 2))
        self._mask = (np.uint64(1) << self._half) - np.uint64(1)
        key = seed_of(seed, *names)
        self._keys = [np.uint64((key + n * _GOLD) % 2**64) for n in range(1, ROUNDS + 1)]

    def __call__(self, places: np.ndarray) -> np.ndarray:
        """The numbers at `places` (int64, any shape, each in 0..size-1)."""
        result = np.array(places, dtype=np.uint64)
        flat = result.reshape(-1)
        outside = np.arange(flat.size)
        while outside.size:
            flat[outside] = self._pass(flat[outside])
            outside = outside[flat[outside] >= self._size]
        return flat.reshape(result.shape).astype(np.int64)

    def _pass(self, numbers: np.ndarray) -> np.ndarray:
        left, right = numbers >> self._half, numbers & self._mask
        for key in self._keys:
            left, right = right, left ^ (mixed(right + key) & self._mask)
        return (left << self._half) | right


def mixed(numbers: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64 (Steele, Lea and Flood 2014)."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * _M1
    numbers = (numbers ^ (numbers >> np.uint64(27))) * _M2
    return numbers ^ (numbers >> np.uint64(31))
