"""Several data sets in fixed shares: sample i is a pure function of (seed, i), so any split of the stream and
any restart is the same stream.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from engine.data.permute import Permutation
from engine.data.windows import NOT_SCORED, PADDING
from engine.spec.error import ConfigError

BLOCK = 4096


class Dataset(Protocol):
    """What a blend draws from. `length` is the T of its batches."""

    length: int

    def __len__(self) -> int: ...

    def batch(self, indices: Sequence[int] | np.ndarray) -> dict[str, np.ndarray]: ...


class Blend:
    """Endless samples of weighted data sets.

    Every block of 4096 samples holds each set exactly in its share (largest remainder; at least once), in an
    order keyed by the block. Within a set, each epoch visits every sample once, in an order keyed by the
    epoch. Sample i costs the same whatever i is.
    """

    def __init__(self, streams: Sequence[tuple[Dataset, float]], seed: int) -> None:
        if not 0 < len(streams) <= BLOCK or any(
            len(dataset) < 1 or weight <= 0 for dataset, weight in streams
        ):
            raise ConfigError(
                "streams",
                f"{len(streams)} of {[len(d) for d, _ in streams]} rows, weights {[w for _, w in streams]}",
                f"1 to {BLOCK} streams, each with a sample or more and a weight above 0",
            )
        self._datasets = [dataset for dataset, _ in streams]
        self._seed = seed
        self._shares = shares([weight for _, weight in streams])
        self._begins = np.cumsum([0, *self._shares])
        self.length = max(dataset.length for dataset in self._datasets)

    def samples(self, first: int, count: int) -> list[tuple[int, int]]:
        """(data set, sample of it) for i = first .. first + count - 1."""
        places = np.arange(first, first + count, dtype=np.int64)
        blocks = places // BLOCK
        ranks = _keyed(blocks, places % BLOCK, BLOCK, self._seed, "block")
        sets = np.searchsorted(self._begins, ranks, side="right") - 1
        drawn = (
            blocks * np.array(self._shares)[sets] + ranks - self._begins[sets]
        )  # how often this set was drawn before
        result = np.empty_like(drawn)
        for n, dataset in enumerate(self._datasets):
            mine, size = sets == n, len(dataset)
            result[mine] = _keyed(drawn[mine] // size, drawn[mine] % size, size, self._seed, "epoch", n)
        return list(zip(sets.tolist(), result.tolist(), strict=True))

    def batch(self, first: int, count: int) -> dict[str, np.ndarray]:
        """Samples first .. first + count - 1 as one batch [count, length]; shorter samples are padded."""
        chosen = self.samples(first, count)
        result: dict[str, np.ndarray] = {}
        for n, dataset in enumerate(self._datasets):
            rows = [row for row, (owner, _) in enumerate(chosen) if owner == n]
            if not rows:
                continue
            part = dataset.batch([chosen[row][1] for row in rows])
            for name, values in part.items():
                if name not in result:
                    result[name] = np.full((count, self.length), _FILL[name], dtype=np.int64)
                result[name][rows, : values.shape[1]] = values
        return result


_FILL = {"tokens_BT": 0, "positions_BT": 0, "documents_BT": PADDING, "labels_BT": NOT_SCORED}


def shares(weights: Sequence[float]) -> list[int]:
    """How many of a block's samples each weight gets: largest remainder, ties to the first, none left
    without.
    """
    exact = np.array(weights, dtype=np.float64) / sum(weights) * BLOCK
    counts = np.floor(exact).astype(np.int64)
    order = np.argsort(-(exact - counts), kind="stable")
    counts[order[: BLOCK - counts.sum()]] += 1
    while (counts == 0).any():
        counts[np.argmin(counts)] += 1
        counts[np.argmax(counts)] -= 1
    return counts.tolist()


def _keyed(keys: np.ndarray, places: np.ndarray, size: int, seed: int, *names: str | int) -> np.ndarray:
    """Each place through the permutation that its key chooses."""
    result = np.empty_like(places)
    for key in np.unique(keys).tolist():
        mine = keys == key
        result[mine] = Permutation(size, seed, *names, key)(places[mine])
    return result
