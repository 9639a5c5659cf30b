"""Decide which documents of a corpus are near-duplicates: removed, with the kept document and the similarity.

Candidates share a MinHash band key and are verified by the Jaccard similarity of their shingles. The result
depends on the documents and their order alone, not on shards or the order of reading.

Shape letters: N documents, B bands, C clusters.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from atelier.engine.config.error import ConfigError, DataError
from atelier.engine.data.curation.minhash import BandGroups, jaccard

Keep = Literal["verified", "component"]
THRESHOLD = 0.8
COMPARED = 64  # documents that one document is compared with, at most
CACHE = 64 << 20  # bytes of shingles kept in memory, beside those of the two documents compared
_ENTRY = 256  # bytes of an array beside its numbers
CONSTANT = 192  # bytes per document beside the bands: keys, order, decision, sorting, pairs of components

ShinglesOf = Callable[[int], np.ndarray]


def bytes_per_document(bands: int) -> int:
    """Memory of `decide` per document: the band keys, and `CONSTANT`. `CACHE` bytes come in addition."""
    return 8 * bands + CONSTANT


@dataclass(frozen=True)
class Duplicates:
    """The decision about each document. `kept_N`: the number of the kept document, its own if it is kept."""

    kept_N: np.ndarray  # int32
    jaccard_N: np.ndarray  # float64: of the document and `kept_N`; 1 for kept documents and exact copies
    parent_N: np.ndarray  # int32: the next document of the chain to `kept_N`; its own if it is kept
    link_N: np.ndarray  # float64: the Jaccard similarity of the document and its parent
    cluster_N: np.ndarray  # int32: connected by verified pairs and exact copies; numbered by first document
    sizes_C: np.ndarray  # int64: documents of each cluster
    exact: int  # documents removed as exact copies
    near: int  # documents removed as near-duplicates
    comparisons: int
    not_compared: int  # pairs that share a band, but were over the limit of comparisons
    # the same, over the limit of documents per key; counted once for each shared band, and with
    # keep="component" also if both are in one component already
    not_listed: int

    def chain(self, document: int) -> list[tuple[int, float]]:
        """The documents that connect a removed document to the kept one, which is the last, each with its
        Jaccard similarity to the one before. Empty for kept documents.
        """
        found: list[tuple[int, float]] = []
        while (parent := int(self.parent_N[document])) != document:
            found.append((parent, float(self.link_N[document])))
            document = parent
        return found


def decide(
    bands_NB: np.ndarray,
    keys_N: np.ndarray,
    order_N: np.ndarray,
    shingles_of: ShinglesOf,
    *,
    threshold: float = THRESHOLD,
    keep: Keep = "verified",
    compared: int = COMPARED,
) -> Duplicates:
    """Which of N documents are kept.

    bands_NB: uint64 keys of `minhash.bands`; the array is overwritten. keys_N: 16 bytes that exact copies
    share ('S16', or uint64 [N, 2]). order_N: the documents' numbers, those first that are rather kept (as
    np.lexsort returns them). shingles_of(n): the sorted shingles of document n; exact copies have the same.

    keep="verified": in this order, a document is removed if its own similarity to a kept document is at least
    `threshold`. The most similar one is named, the earlier one of two. keep="component": the rule of MT-NLG
    (Smith et al. 2022, 2201.11990): of documents connected by verified pairs only the first is kept.

    A document is compared with at most `compared` others, those first that share most bands; the others are
    counted. Raises ConfigError, DataError.
    """
    _check(bands_NB, keys_N, order_N, threshold, keep, compared)
    first_N = _first_copies(keys_N, order_N)
    is_first_N = first_N == np.arange(len(first_N))
    groups = BandGroups(bands_NB, is_first_N)
    run = _Run(groups, order_N, shingles_of, threshold, compared, keep)
    ranks = np.flatnonzero(groups.is_shared_N[order_N])
    if keep == "verified":
        parent_N, link_N = run.verified(first_N, ranks)
        kept_N, jaccard_N = parent_N, link_N
    else:
        parent_N, link_N = run.component(first_N, ranks)
        kept_N, jaccard_N = run.ends(parent_N, link_N, is_first_N)
    cluster_N, sizes_C = run.forest.clusters(order_N, first_N)
    is_removed_N = kept_N != np.arange(len(kept_N))
    return Duplicates(
        kept_N,
        jaccard_N,
        parent_N,
        link_N,
        cluster_N,
        sizes_C,
        exact=int(np.count_nonzero(~is_first_N)),
        near=int(np.count_nonzero(is_removed_N & is_first_N)),
        comparisons=run.comparisons,
        not_compared=run.not_compared,
        not_listed=run.not_listed,
    )


class _Run:
    """One decision. Documents are named by their place in the order ("rank") in groups and forest."""

    def __init__(
        self,
        groups: BandGroups,
        order_N: np.ndarray,
        shingles_of: ShinglesOf,
        threshold: float,
        compared: int,
        keep: Keep,
    ) -> None:
        self.forest = _Forest(len(order_N), keeps_pairs=keep == "component")
        self.comparisons = self.not_compared = self.not_listed = 0
        self._groups, self._order_N = groups, order_N
        self._shingles = _Cache(shingles_of, CACHE)
        self._threshold, self._compared = threshold, compared

    def verified(self, first_N: np.ndarray, ranks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The kept document of each document, and their similarity."""
        kept_N, jaccard_N = np.arange(len(first_N), dtype=np.int32), np.ones(len(first_N))
        for rank in ranks.tolist():
            best, best_rank, number = 0.0, -1, int(self._order_N[rank])
            others, not_listed = self._groups.found(number)
            self.not_listed += not_listed
            self.not_compared += max(len(others) - self._compared, 0)
            for other in others[: self._compared].tolist():
                found = self._compare(number, int(self._order_N[other]))
                if found < self._threshold:
                    continue
                self.forest.join(rank, other, found)
                if found > best or (found == best and other < best_rank):
                    best, best_rank = found, other
            if best_rank < 0:
                self._groups.add(number, rank)
            else:
                kept_N[number], jaccard_N[number] = self._order_N[best_rank], best
        is_copy_N = first_N != np.arange(len(first_N))
        jaccard_N[is_copy_N] = jaccard_N[first_N[is_copy_N]]  # 1 if the first copy is kept
        kept_N[is_copy_N] = kept_N[first_N[is_copy_N]]
        return kept_N, jaccard_N

    def component(self, first_N: np.ndarray, ranks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The parent of each document in a tree of verified pairs, and their similarity."""
        for rank in ranks.tolist():
            number, count = int(self._order_N[rank]), 0
            others, not_listed = self._groups.found(number)
            self.not_listed += not_listed
            for place, other in enumerate(others.tolist()):
                if self.forest.is_joined(rank, other):
                    continue
                if count == self._compared:
                    self.not_compared += len(others) - place
                    break
                count += 1
                found = self._compare(number, int(self._order_N[other]))
                if found >= self._threshold:
                    self.forest.join(rank, other, found)
            self._groups.add(number, rank)
        above_N, similar_N = self.forest.tree()
        children = np.flatnonzero(above_N != np.arange(len(above_N)))
        parent_N, link_N = first_N.copy(), np.ones(len(first_N))
        parent_N[self._order_N[children]] = self._order_N[above_N[children]]
        link_N[self._order_N[children]] = similar_N[children]
        return parent_N, link_N

    def ends(
        self, parent_N: np.ndarray, link_N: np.ndarray, is_first_N: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The last document of each chain, and its similarity to the first one."""
        kept_N = parent_N.copy()
        while not np.array_equal(further_N := kept_N[kept_N], kept_N):
            kept_N = further_N
        jaccard_N = link_N.copy()
        for number in np.flatnonzero((kept_N != parent_N) & is_first_N).tolist():
            jaccard_N[number] = self._compare(number, int(kept_N[number]))
        copies = np.flatnonzero((kept_N != parent_N) & ~is_first_N)
        jaccard_N[copies] = jaccard_N[parent_N[copies]]
        return kept_N, jaccard_N

    def _compare(self, one: int, other: int) -> float:
        self.comparisons += 1
        return jaccard(self._shingles.of(one), self._shingles.of(other))


class _Forest:
    """Components of N documents (union-find), and the E pairs that joined them: at most N - 1. Documents are
    named by their place in the order ("rank"); the first of a component is its root.

    Memory: 4 bytes a document, and 16 a pair if pairs are kept.
    """

    def __init__(self, number: int, *, keeps_pairs: bool) -> None:
        self._above_N = np.arange(number, dtype=np.int32)
        self._keeps_pairs = keeps_pairs
        self._one_E, self._other_E, self._jaccard_E = array("i"), array("i"), array("d")

    def root(self, rank: int) -> int:
        """The first document of the component."""
        above_N = self._above_N
        while (above := int(above_N[rank])) != rank:
            above_N[rank] = above_N[above]
            rank = above
        return rank

    def is_joined(self, one: int, other: int) -> bool:
        return self.root(one) == self.root(other)

    def join(self, one: int, other: int, jaccard: float) -> None:
        """Join the components of a pair."""
        roots = sorted((self.root(one), self.root(other)))
        if roots[0] != roots[1]:
            self._above_N[roots[1]] = roots[0]
            if self._keeps_pairs:
                self._one_E.append(one)
                self._other_E.append(other)
                self._jaccard_E.append(jaccard)

    def tree(self) -> tuple[np.ndarray, np.ndarray]:
        """For each document the next one on the way to the first of its component (int32 [N], itself for that
        one), and the Jaccard similarity of both (float64 [N], 1 for that one). Needs the pairs.
        """
        parent_N = np.arange(len(self._above_N), dtype=np.int32)
        jaccard_N = np.ones(len(parent_N))
        one_E, other_E = (np.frombuffer(each, dtype=np.int32) for each in (self._one_E, self._other_E))
        ends = np.concatenate([one_E, other_E])
        order = np.argsort(ends, kind="stable").astype(np.int32)
        ends = ends[order]
        neighbours = np.concatenate([other_E, one_E])[order]
        order %= max(len(one_E), 1)
        similar_E = np.frombuffer(self._jaccard_E, dtype=np.float64)
        is_reached_N = self._above_N == parent_N
        reached = np.flatnonzero(is_reached_N)
        while len(reached):  # breadth first; no document is reached from two others, as pairs form trees
            begins, ends_of = np.searchsorted(ends, reached), np.searchsorted(ends, reached, side="right")
            counts = ends_of - begins
            first = np.cumsum(counts) - counts
            places = np.repeat(begins - first, counts) + np.arange(int(counts.sum()))
            is_new = ~is_reached_N[neighbours[places]]
            children, places = neighbours[places][is_new], places[is_new]
            parent_N[children] = np.repeat(reached, counts)[is_new]
            jaccard_N[children] = similar_E[order[places]]
            is_reached_N[children] = True
            reached = children
        return parent_N, jaccard_N

    def clusters(self, order_N: np.ndarray, first_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The cluster of each document (int32), numbered by their first documents in the order, and the
        clusters' sizes. order_N: the documents by rank; first_N: the document whose cluster each one shares.
        """
        root_N = self._above_N
        while not np.array_equal(further_N := root_N[root_N], root_N):
            root_N = further_N
        # exact copies other than the first are components of their own here, and no clusters
        is_cluster_N = (root_N == np.arange(len(root_N))) & (first_N[order_N] == order_N)
        numbers_N = np.cumsum(is_cluster_N, dtype=np.int32) - 1
        cluster_N = np.empty(len(root_N), dtype=np.int32)
        cluster_N[order_N] = numbers_N[root_N]
        cluster_N = cluster_N[first_N]
        return cluster_N, np.bincount(cluster_N, minlength=int(is_cluster_N.sum()))


class _Cache:
    """The shingles of the documents used last."""

    def __init__(self, shingles_of: ShinglesOf, most: int) -> None:
        self._shingles_of, self._most = shingles_of, most
        self._held: OrderedDict[int, np.ndarray] = OrderedDict()
        self._bytes = 0

    def of(self, document: int) -> np.ndarray:
        found = self._held.pop(document, None)
        if found is None:
            found = self._shingles_of(document)
            self._bytes += found.nbytes + _ENTRY
        self._held[document] = found
        while self._bytes > self._most and len(self._held) > 2:
            self._bytes -= self._held.popitem(last=False)[1].nbytes + _ENTRY
        return found


def _first_copies(keys_N: np.ndarray, order_N: np.ndarray) -> np.ndarray:
    """int32 [N]: of the documents with the same key, the first in the order."""
    keys_N2 = np.ascontiguousarray(keys_N).view(np.uint64).reshape(len(keys_N), 2)
    low, high = keys_N2[order_N, 0], keys_N2[order_N, 1]
    ranks = np.lexsort((low, high))  # stable: equal keys stay in the order
    is_new = np.ones(len(ranks), dtype=bool)
    is_new[1:] = (low[ranks[1:]] != low[ranks[:-1]]) | (high[ranks[1:]] != high[ranks[:-1]])
    del low, high
    group = np.cumsum(is_new, dtype=np.int32) - 1
    numbers = order_N[ranks]
    first_N = np.empty(len(ranks), dtype=np.int32)
    first_N[numbers] = numbers[np.flatnonzero(is_new)][group]
    return first_N


def _check(
    bands_NB: np.ndarray,
    keys_N: np.ndarray,
    order_N: np.ndarray,
    threshold: float,
    keep: str,
    compared: int,
) -> None:
    if not 0 < threshold <= 1:
        raise ConfigError("threshold", f"{threshold} is no similarity", "give a number above 0, at most 1")
    if keep not in get_args(Keep):
        raise ConfigError("keep", f"there is no {keep}", f"give one of {', '.join(get_args(Keep))}")
    if compared < 1:
        raise ConfigError("compared", f"{compared} documents are compared", "give at least 1")
    if not len(bands_NB) == len(keys_N) == len(order_N):
        sizes = f"{len(bands_NB)} documents with bands, {len(keys_N)} with keys, {len(order_N)} in the order"
        raise DataError(f"duplicates: {sizes}; give each of them once")
    if keys_N.dtype.itemsize * (keys_N.size // max(len(keys_N), 1)) != 16 and len(keys_N):
        raise DataError(f"duplicates: the keys have type {keys_N.dtype}; give 16 bytes for each document")
    is_named_N = np.zeros(len(order_N), dtype=bool)
    is_named_N[order_N[(order_N >= 0) & (order_N < len(order_N))]] = True
    if not is_named_N.all():
        missing = int(np.argmin(is_named_N))
        raise DataError(f"duplicates: the order does not name document {missing}; give each number once")
