"""Runs of words that stand for a text in an index: minimizers (Roberts et al. 2004; winnowing, Schleimer et
al. 2003).

Of each WINDOW consecutive runs of RUN words the one with the least hash is kept. So each text of
RUN + WINDOW - 1 = LEAST words has a kept run, which depends on these words alone: a document that contains
the text keeps the same one. Of random hashes 2 / (WINDOW + 1) are kept: 0.4 a word, less where runs repeat in
a document.

Shorter runs are fewer, but less rare. On 58 MB of docstrings, runs of 4 words in windows of 5 are 0.26 a
word and these 0.33, but then 10 to 60 % more documents were candidates for texts that were cut out of some.

Shape letters: W words, S segments, K kept runs, L places of LEAST words, R windows of a part, C the most
kept runs of such a window.
"""

import numpy as np

from atelier.engine.data.counter_rng import mixed
from atelier.engine.data.curation.overlap import LEAST, WORDS
from atelier.engine.data.curation.word_hashes import ngram_hashes

RUN = 5  # words
WINDOW = LEAST - RUN + 1  # runs
MOST = WORDS - LEAST + 1  # kept runs of a window of WORDS words


def least_hashes(hash_W: np.ndarray, window: int) -> np.ndarray:
    """uint64 [L]: the least hash of `window` consecutive runs, for each place of the first."""
    hashes = ngram_hashes(hash_W, RUN)
    count = max(len(hashes) - window + 1, 0)
    least_L = hashes[:count].copy()
    for place in range(1, window):
        np.minimum(least_L, hashes[place : place + count], out=least_L)
    return least_L


def kept_runs(
    hash_W: np.ndarray, segment_W: np.ndarray, window: int = WINDOW
) -> tuple[np.ndarray, np.ndarray]:
    """The kept runs of many texts, one after another: a uniform uint64 hash of each, and its segment. No run
    spans two segments (numbers that ascend over the words). A run may be given twice.
    """
    least_L = least_hashes(hash_W, window)
    segment_L = segment_W[: len(least_L)]
    is_kept_L = segment_L == segment_W[len(segment_W) - len(least_L) :]
    is_same_L = is_kept_L[:-1] & (least_L[1:] == least_L[:-1])
    is_kept_L[1:] &= ~is_same_L
    return mixed(least_L[is_kept_L]), segment_L[is_kept_L]


def windows_of(hash_W: np.ndarray) -> np.ndarray:
    """uint64 [R, C = MOST]: the kept runs of each window of WORDS words of a part, or of the whole of a part
    of LEAST to WORDS words; some are repeated. A document that shares such a window has all of its runs.
    """
    least_L = least_hashes(hash_W, WINDOW)
    size = min(len(least_L), MOST)
    if not size:
        return np.zeros((0, MOST), dtype=np.uint64)
    rows_RC = np.lib.stride_tricks.sliding_window_view(least_L, size)
    rows_RC = np.pad(rows_RC, ((0, 0), (0, MOST - size)), mode="edge")
    is_new_R = np.ones(len(rows_RC), dtype=bool)
    is_new_R[1:] = (rows_RC[1:] != rows_RC[:-1]).any(axis=1)
    return mixed(rows_RC[is_new_R])
