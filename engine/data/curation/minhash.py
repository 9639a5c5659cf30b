"""Estimate how similar texts are: word shingles, MinHash (Broder 1997) and its bands (Leskovec et al., Mining
of Massive Datasets, 3.4). List the documents that share a band's key.

Shape letters: S shingles of a text, B bands, R rows of a band, H = B * R hash functions, N documents.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np

from atelier.engine.config.error import ConfigError, DataError
from atelier.engine.data.counter_rng import mixed
from atelier.engine.data.curation.word_hashes import find_words, ngram_hashes

WORDS = 5  # of a shingle
NO_BAND = 0  # the key of a text without words: it shares no band with any text
MOST_HASHES = 4096
BLOCK = 1 << 17  # values computed at once: 1 MiB of working memory
LISTED = 256  # documents of one key that are listed; later ones are counted
MOST_DOCUMENTS = (1 << 31) - 1
_ALONE = _FREE = -1
_STEP = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class MinHash:
    """The hash functions: `bands` keys of `rows` minima each. 14 bands of 8 rows find 92 % of the pairs with
    a Jaccard similarity of 0.8. Raises ConfigError.
    """

    bands: int = 14
    rows: int = 8
    seed: int = 1

    def __post_init__(self) -> None:
        if self.bands < 1 or self.rows < 1 or self.bands * self.rows > MOST_HASHES:
            raise ConfigError(
                "minhash",
                f"{self.bands} bands of {self.rows} rows",
                f"give at least 1 of each, and at most {MOST_HASHES} hash functions",
            )


def shingles(text: str, words: int = WORDS) -> np.ndarray:
    """The sorted unique uint64 hashes of the text's runs of `words` words. A text of fewer words is one
    shingle; a text without words has none.
    """
    hash_W = find_words(text).hash_W
    found = ngram_hashes(hash_W, min(words, max(len(hash_W), 1)))
    found.sort()
    is_first_S = np.ones(len(found), dtype=bool)
    np.not_equal(found[1:], found[:-1], out=is_first_S[1:])
    return found[is_first_S]


def bands(shingles_S: np.ndarray, spec: MinHash) -> np.ndarray:
    """uint64 [B]: a key for each band. Texts with Jaccard similarity J share a band's key with the
    probability J^R. All keys of a text without shingles are `NO_BAND`.

    A minimum has 32 bits: each hash function is a * x + b modulo 2^32, a odd, over hashes x that are uniform
    already. Two different shingles have the same minimum with a probability of at most S / 2^32.
    """
    if not len(shingles_S):
        return np.full(spec.bands, NO_BAND, dtype=np.uint64)
    factors_H1, offsets_H1 = _functions(spec)
    hashes = len(factors_H1)
    values_S = (shingles_S >> np.uint64(32)).astype(np.uint32)
    size = max(BLOCK // hashes, 1)
    least_H = np.full(hashes, 0xFFFFFFFF, dtype=np.uint32)
    work = np.empty((hashes, min(size, len(values_S))), dtype=np.uint32)
    for first in range(0, len(values_S), size):
        part = values_S[first : first + size]
        block = work[:, : len(part)]
        np.multiply(factors_H1, part, out=block)
        block += offsets_H1
        np.minimum(least_H, block.min(axis=1), out=least_H)
    return _keys(least_H.reshape(spec.bands, spec.rows))


def share_found(jaccard: float, bands: int, rows: int) -> float:
    """The probability that two texts share at least one of the bands: 1 - (1 - J^R)^B."""
    return 1.0 - (1.0 - jaccard**rows) ** bands


def jaccard(one_S: np.ndarray, other_S: np.ndarray) -> float:
    """The Jaccard similarity of two sorted arrays of unique shingles; 0 if one is empty."""
    less, more = sorted((one_S, other_S), key=len)
    if not len(less):
        return 0.0
    places = np.searchsorted(more, less)
    places[places == len(more)] = 0  # larger than all, so different from the first
    common = int(np.count_nonzero(more[places] == less))
    return common / (len(less) + len(more) - common)


class BandGroups:
    """For each band, the documents added so far under each key.

    The two halves of each 64-bit key are overwritten: the first with the place where its group's list begins
    (int32; -1 if no other document has the key), the second with the lists of all groups of the band. A list
    is as long as its group: a counter, then members. There is no cell for the last document of a group, which
    nobody looks up.
    """

    def __init__(self, bands_NB: np.ndarray, is_member_N: np.ndarray) -> None:
        """Overwrites `bands_NB` (uint64, C order, writable), a band at a time; the others' memory is 40 bytes
        a document. Documents outside `is_member_N` are in no group. Raises DataError.
        """
        number = len(bands_NB)
        if bands_NB.dtype != np.uint64 or not (bands_NB.flags.c_contiguous and bands_NB.flags.writeable):
            raise DataError("bands: the keys are no writable array of uint64 in C order; give a copy of them")
        if number > MOST_DOCUMENTS:
            raise DataError(f"bands: {number} documents; at most {MOST_DOCUMENTS} are compared at once")
        self._cells: np.ndarray = bands_NB.view(np.int32)  # [N, 2 B]
        self.is_shared_N = np.zeros(number, dtype=bool)  # whether a document shares a key
        for band in range(bands_NB.shape[1]):
            self._build(bands_NB[:, band].copy(), is_member_N, band)

    def _build(self, keys_N: np.ndarray, is_member_N: np.ndarray, band: int) -> None:
        self._cells[:, 2 * band] = _ALONE
        self._cells[:, 2 * band + 1] = _FREE
        members = np.flatnonzero(is_member_N & (keys_N != NO_BAND)).astype(np.int32)
        keys = keys_N[members]
        order = np.argsort(keys)
        keys, members = keys[order], members[order]
        begins = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]])[: len(keys)])
        sizes = np.diff(np.append(begins, len(keys)))
        starts = np.repeat(begins, sizes)
        is_shared = np.repeat(sizes > 1, sizes)
        self._cells[begins, 2 * band + 1] = 0
        self._cells[members[is_shared], 2 * band] = starts[is_shared]
        self.is_shared_N[members[is_shared]] = True

    def found(self, document: int) -> tuple[np.ndarray, int]:
        """The names under which documents with a key of this one were added: those that share most bands
        first, then in ascending order. And the number of documents that were not listed, once for each band.
        """
        lists: list[np.ndarray] = []
        left_out = 0
        for band, start in enumerate(self._cells[document, ::2].tolist()):
            if start == _ALONE:
                continue
            cells = self._cells[:, 2 * band + 1]
            if count := int(cells[start]):
                listed = min(count, LISTED)
                lists.append(cells[start + 1 : start + 1 + listed])
                left_out += count - listed
        if not lists:
            return np.zeros(0, dtype=np.int32), 0
        names, bands = np.unique(np.concatenate(lists), return_counts=True)
        return names[np.argsort(-bands, kind="stable")], left_out

    def add(self, document: int, name: int) -> None:
        """Add a document under a name (below 2^31) to the lists of its keys."""
        for band, start in enumerate(self._cells[document, ::2].tolist()):
            if start == _ALONE:
                continue
            cells = self._cells[:, 2 * band + 1]
            count, place = int(cells[start]), start + 1 + int(cells[start])
            # the cell behind a full list is the counter of the next group: the last of a group needs none
            if count < LISTED and place < len(cells) and cells[place] == _FREE:
                cells[place] = name
            cells[start] = count + 1


@cache
def _functions(spec: MinHash) -> tuple[np.ndarray, np.ndarray]:
    """Factors (odd) and offsets of the hash functions, uint32 [H, 1] each."""
    count = 2 * spec.bands * spec.rows
    numbers = mixed(_counters(spec.seed, count))
    halves = (numbers >> np.uint64(32)).astype(np.uint32).reshape(2, -1, 1)
    return halves[0] | np.uint32(1), halves[1]


def _keys(least_BR: np.ndarray) -> np.ndarray:
    """uint64 [B]: the hash of each row of minima; different rows have one hash with a probability of about
    2^-64.
    """
    weights_R = _weights(least_BR.shape[1])
    keys_B = mixed((least_BR * weights_R).sum(axis=1, dtype=np.uint64))
    keys_B[keys_B == NO_BAND] = 1
    return keys_B


@cache
def _weights(rows: int) -> np.ndarray:
    """Odd uint64 [R]."""
    return mixed(_counters(0, rows)) | np.uint64(1)


def _counters(seed: int, count: int) -> np.ndarray:
    return np.array([(seed + n * _STEP) % (1 << 64) for n in range(1, count + 1)], dtype=np.uint64)
