"""Counter-based random numbers and permutations: pure functions of (seed, names, row, epoch, position),
independent of other calls, without stored state.
"""

from collections.abc import Sequence

import numpy as np

from atelier.engine.config.seed import seed_of

ROUNDS = 6
_M1, _M2, _GOLD = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB), 0x9E3779B97F4A7C15


class Permutation:
    """A bijection of 0..size-1 chosen by (seed, names).

    A Feistel network over the next power of four; results outside the range are permuted again until they are
    inside (cycle walking, Black and Rogaway 2002), which keeps it a bijection. Under four passes per element
    on average.
    """

    def __init__(self, size: int, seed: int, *names: str | int) -> None:
        self._size = size
        self._half = np.uint64(max(1, ((max(size, 2) - 1).bit_length() + 1) // 2))
        self._mask = (np.uint64(1) << self._half) - np.uint64(1)
        key = seed_of(seed, *names)
        self._keys = [np.uint64((key + n * _GOLD) % 2**64) for n in range(1, ROUNDS + 1)]

    def __call__(self, places: np.ndarray) -> np.ndarray:
        """The images of `places` (int64, any shape, each in 0..size-1)."""
        result = np.array(places, dtype=np.uint64)
        flat = result.reshape(-1)
        outside = np.arange(flat.size)
        while outside.size:
            flat[outside] = self._pass(flat[outside])
            outside = outside[flat[outside] >= self._size]
        return flat.reshape(result.shape).astype(np.int64)

    def inverse(self, images: np.ndarray) -> np.ndarray:
        """The places whose images these are: inverse(self(places)) equals places."""
        result = np.array(images, dtype=np.uint64)
        flat = result.reshape(-1)
        outside = np.arange(flat.size)
        while outside.size:
            flat[outside] = self._pass_back(flat[outside])
            outside = outside[flat[outside] >= self._size]
        return flat.reshape(result.shape).astype(np.int64)

    def _pass(self, numbers: np.ndarray) -> np.ndarray:
        left, right = numbers >> self._half, numbers & self._mask
        for key in self._keys:
            left, right = right, left ^ (mixed(right + key) & self._mask)
        return (left << self._half) | right

    def _pass_back(self, numbers: np.ndarray) -> np.ndarray:
        left, right = numbers >> self._half, numbers & self._mask
        for key in reversed(self._keys):
            left, right = right ^ (mixed(left + key) & self._mask), left
        return (left << self._half) | right


def mixed(numbers: np.ndarray) -> np.ndarray:
    """A uint64 hash of each number: the finaliser of splitmix64 (Steele, Lea and Flood 2014)."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * _M1
    numbers = (numbers ^ (numbers >> np.uint64(27))) * _M2
    return numbers ^ (numbers >> np.uint64(31))


Numbers = Sequence[int] | np.ndarray
_STEP = np.uint64(0x9E3779B97F4A7C15)


class Chance:
    """A counter-based random number generator with the key (seed, names): splitmix64 (Steele, Lea and Flood
    2014), evaluated at counters instead of stepped.
    """

    def __init__(self, seed: int, *names: str | int) -> None:
        self._seed, self._names = seed, names
        self._key = np.uint64(seed_of(seed, *names))

    def keys(self, rows_B: np.ndarray, epochs_B: np.ndarray) -> np.ndarray:
        """A uint64 key for each row in its epoch, the input of `uniform`."""
        row_B = mixed(self._key + np.asarray(rows_B).astype(np.uint64) * _STEP)
        return mixed(row_B + (np.asarray(epochs_B).astype(np.uint64) + np.uint64(1)) * _STEP)

    def turns(self, rows_B: np.ndarray, epochs_B: np.ndarray, size: int, count: int) -> np.ndarray:
        """int64 [B] in 0..count-1: a random but balanced choice for each row. Over an epoch of `size` rows
        the values' frequencies differ by at most one.
        """
        result_B = np.empty(len(rows_B), dtype=np.int64)
        for epoch in np.unique(epochs_B).tolist():
            mine_B = epochs_B == epoch
            order = Permutation(size, self._seed, *self._names, "turns", epoch)
            result_B[mine_B] = order(rows_B[mine_B]) % count
        return result_B


def uniform(keys: np.ndarray, places: np.ndarray | int, lane: int) -> np.ndarray:
    """Numbers in [0, 1) for row keys and places of broadcastable shapes; lanes are independent streams."""
    with np.errstate(over="ignore"):
        offset = np.asarray(places).astype(np.uint64) * _STEP + np.uint64(lane << 40)
        return (mixed(mixed(keys + offset) ^ keys) >> np.uint64(11)) * 2.0**-53


def below(keys: np.ndarray, places: np.ndarray | int, lane: int, sizes: np.ndarray | int) -> np.ndarray:
    """Random integers in 0 .. sizes - 1 (int64), drawn as by `uniform`."""
    return np.minimum((uniform(keys, places, lane) * sizes).astype(np.int64), np.asarray(sizes) - 1)


def numbered(indices: Numbers, epochs: Numbers | None) -> tuple[np.ndarray, np.ndarray]:
    """Indices and their epochs as int64 [B]; default epoch 0."""
    rows_B = np.asarray(indices, dtype=np.int64)
    return rows_B, np.zeros_like(rows_B) if epochs is None else np.asarray(epochs, dtype=np.int64)
