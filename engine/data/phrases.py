"""Collocations: pairs of words that occur together far more often than by chance, found in training tokens.

Shape letters: N tokens looked at, W words of them, P distinct pairs.
"""

import numpy as np

from atelier.engine.data.text import Text
from atelier.engine.data.words import Spelling, is_spaced, pair_hashes, word_hashes, word_starts

STRETCHES, STRETCH = 64, 1 << 16  # at most 4M tokens are looked at, in stretches spread over the text


def find_phrases(text: Text, spelling: Spelling, *, count: int, pmi: float) -> np.ndarray:
    """Hashes (sorted uint64) of the pairs of words, a space apart, seen `count` times or more, whose
    pointwise mutual information log2 p(a b) / (p(a) p(b)) is `pmi` bits or more (Church and Hanks 1990).
    """
    places_N = _places(len(text))
    if len(places_N) < 2:
        return np.zeros(0, dtype=np.uint64)
    flat_N = text.tokens_N[places_N].astype(np.int64)
    first_W = np.flatnonzero(word_starts(flat_N[None], spelling)[0])
    hashes_W = word_hashes(flat_N, first_W)
    pairs = np.flatnonzero(is_spaced(flat_N, first_W, spelling))
    if not len(pairs):
        return np.zeros(0, dtype=np.uint64)
    _, word_W, counts = np.unique(hashes_W, return_inverse=True, return_counts=True)
    found_P, at_P, counts_P = np.unique(pair_hashes(hashes_W)[pairs], return_index=True, return_counts=True)
    expected_P = counts[word_W[pairs[at_P] - 1]] * (counts[word_W[pairs[at_P]]] / len(hashes_W))
    return found_P[(counts_P >= count) & (counts_P >= 2.0**pmi * expected_P)]


def _places(size: int) -> np.ndarray:
    if size <= STRETCHES * STRETCH:
        return np.arange(size)
    begins = np.arange(STRETCHES) * (size - STRETCH) // (STRETCHES - 1)
    return (begins[:, None] + np.arange(STRETCH)).reshape(-1)
