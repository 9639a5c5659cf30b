"""Baselines for models: gzip, xz, and an interpolated token trigram, in bits per byte of held-out text.

Shape letters: N tokens, P predictions.
"""

import gzip
import lzma

import numpy as np

BUCKETS = 24  # contexts are grouped by the power of two of their count
EVERY = 20  # every 20th training document is for the interpolation weights
EM_ROUNDS = 20


def gzip_bits(text: bytes) -> float:
    """Bits per byte of `text` under gzip -9."""
    return 8.0 * len(gzip.compress(text, 9, mtime=0)) / len(text)


def xz_bits(text: bytes) -> float:
    """Bits per byte of `text` under xz -9e."""
    return 8.0 * len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)) / len(text)


def with_own_begin(tokens_N: np.ndarray, ends_D: np.ndarray, begin: int) -> np.ndarray:
    """The tokens with `begin` instead of the end token at each document's start, so that an end token only
    ends documents. `ends_D`: tokens up to and including each document's end.
    """
    starts_D = np.concatenate([[0], ends_D])
    found_N = tokens_N.astype(np.int64)
    found_N[starts_D[starts_D < len(found_N)]] = begin
    return found_N


def shuffled(tokens_N: np.ndarray, end: int) -> np.ndarray:
    """The same documents in a fixed random order; a document cut at the end stays there."""
    ends_D = np.flatnonzero(tokens_N == end) + 1
    documents = np.split(tokens_N, ends_D)
    last = len(documents) - 1  # empty if the text ends with an end token
    order = [place for place in np.random.default_rng(0).permutation(len(documents)) if place != last]
    return np.concatenate([documents[place] for place in [*order, last]])


def trigram_bits(
    train_N: np.ndarray, held_out_N: np.ndarray, *, vocab: int, end: int, num_bytes: int
) -> float:
    """`Trigram.bits` of a trigram that is trained on `train_N`."""
    return Trigram(train_N, vocab, end).bits(held_out_N, num_bytes)


class Trigram:
    """An interpolated trigram over tokens.

    Each order is mixed with the next lower one by a weight per power of two of its context's count (Jelinek
    and Mercer 1980), fitted by expectation maximisation on a slice of the training text with counts from the
    rest; the lowest order is mixed with the uniform distribution. About 1.3 CPU-s for 3 M training tokens.
    """

    def __init__(self, train_N: np.ndarray, vocab: int, end: int) -> None:
        train_N = train_N.astype(np.int64)
        is_fitted_N = _fitting_slice(train_N, end)
        fitted = _Counts(train_N[~is_fitted_N], vocab, end)
        self._weights = _fit(*fitted.estimates(train_N[is_fitted_N]), vocab)
        self._counts, self._vocab, self._end = _Counts(train_N, vocab, end), vocab, end

    def bits(self, held_out_N: np.ndarray, num_bytes: int) -> float:
        """Bits per byte on the `num_bytes` of text that `held_out_N` encodes. Scores the same tokens as a
        model: all except each document's first.
        """
        held_out_N = held_out_N.astype(np.int64)
        probability_P = self.probabilities(held_out_N)
        is_scored_P = np.concatenate([[self._end], held_out_N[:-1]]) != self._end
        return float(-np.log2(probability_P[is_scored_P]).sum() / num_bytes)

    def probabilities(self, tokens_P: np.ndarray) -> np.ndarray:
        """The probability of each token after those before it [P]; end tokens precede the first."""
        return _mixed(*self._counts.estimates(tokens_P), self._weights, self._vocab)


def _fitting_slice(train_N: np.ndarray, end: int) -> np.ndarray:
    """A mask of the tokens for fitting weights: every 20th document, or the end if there are few."""
    documents_N = np.cumsum(train_N == end) - (train_N == end)
    if documents_N[-1] >= EVERY:
        return documents_N % EVERY == EVERY // 2
    return np.arange(len(train_N)) >= len(train_N) - max(1, len(train_N) // EVERY)


class _Counts:
    """Counts of one, two and three tokens in a row, as sorted keys."""

    def __init__(self, tokens_N: np.ndarray, vocab: int, end: int) -> None:
        self._vocab, self._end = vocab, end
        self._total = len(tokens_N)
        self._uni = np.bincount(tokens_N, minlength=vocab)
        self._bi = np.unique(self._keys(tokens_N, 2), return_counts=True)
        self._tri = np.unique(self._keys(tokens_N, 3), return_counts=True)
        # sums over the same predictions, so that each context's estimates sum to 1
        self._context1 = np.bincount(self._keys(tokens_N, 2) // vocab, minlength=vocab)
        pairs = (
            np.add.reduceat(self._tri[1], starts)
            if len(starts := _starts(self._tri[0] // vocab))
            else np.zeros(0, np.int64)
        )
        self._context2 = (self._tri[0][starts] // vocab, pairs)

    def _keys(self, tokens_N: np.ndarray, order: int) -> np.ndarray:
        """Each token with the order-1 tokens before it as one number; end tokens precede the first."""
        padded = np.concatenate([np.full(order - 1, self._end), tokens_N])
        keys = np.zeros(len(tokens_N), dtype=np.int64)
        for back in range(order):
            keys = keys * self._vocab + padded[back : back + len(tokens_N)]
        return keys

    def estimates(self, tokens_P: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """ml_3P: relative frequencies (order 1, 2, 3) of each token after its context; counts_3P: counts of
        the contexts.
        """
        two, three = self._keys(tokens_P, 2), self._keys(tokens_P, 3)
        found = [self._uni[tokens_P], _looked_up(self._bi, two), _looked_up(self._tri, three)]
        counts = [
            np.full(len(tokens_P), self._total),
            self._context1[two // self._vocab],
            _looked_up(self._context2, three // self._vocab),
        ]
        counts_3P = np.stack(counts)
        return np.stack(found) / np.maximum(counts_3P, 1), counts_3P


def _starts(sorted_keys: np.ndarray) -> np.ndarray:
    return (
        np.flatnonzero(np.concatenate([[True], sorted_keys[1:] != sorted_keys[:-1]]))
        if len(sorted_keys)
        else np.zeros(0, np.int64)
    )


def _looked_up(table: tuple[np.ndarray, np.ndarray], keys_P: np.ndarray) -> np.ndarray:
    """The counts of `keys_P`; 0 for unseen ones."""
    keys, counts = table
    places = np.minimum(np.searchsorted(keys, keys_P), len(keys) - 1)
    return np.where(keys[places] == keys_P, counts[places], 0)


def _buckets(counts_P: np.ndarray) -> np.ndarray:
    """0 for unseen contexts, otherwise 1 + the power of two of their count."""
    return np.minimum(np.frexp(counts_P.astype(np.float64))[1], BUCKETS - 1)


def _fit(ml_3P: np.ndarray, counts_3P: np.ndarray, vocab: int) -> np.ndarray:
    """weights_3K: for each order and bucket, the share of that order's estimate, by expectation maximisation,
    lowest order first.
    """
    weights_3K = np.full((3, BUCKETS), 0.5)
    lower_P = np.full(ml_3P.shape[1], 1.0 / vocab)
    for order in range(3):
        buckets_P = _buckets(counts_3P[order])
        sizes_K = np.bincount(buckets_P, minlength=BUCKETS)
        for _ in range(EM_ROUNDS):
            own_P = weights_3K[order][buckets_P] * ml_3P[order]
            own_P /= own_P + (1.0 - weights_3K[order][buckets_P]) * lower_P
            # one count per side: no weight becomes 0 or 1, and a bucket without examples stays at one half
            weights_3K[order] = (np.bincount(buckets_P, weights=own_P, minlength=BUCKETS) + 1.0) / (
                sizes_K + 2.0
            )
        lower_P = _one_order(ml_3P[order], counts_3P[order], weights_3K[order], lower_P)
    return weights_3K


def _mixed(ml_3P: np.ndarray, counts_3P: np.ndarray, weights_3K: np.ndarray, vocab: int) -> np.ndarray:
    """The interpolated probability of each token."""
    result_P = np.full(ml_3P.shape[1], 1.0 / vocab)
    for order in range(3):
        result_P = _one_order(ml_3P[order], counts_3P[order], weights_3K[order], result_P)
    return result_P


def _one_order(
    ml_P: np.ndarray, counts_P: np.ndarray, weights_K: np.ndarray, lower_P: np.ndarray
) -> np.ndarray:
    """An unseen context has no estimate: only the lower order counts."""
    weights_P = np.where(counts_P > 0, weights_K[_buckets(counts_P)], 0.0)
    return weights_P * ml_P + (1.0 - weights_P) * lower_P
