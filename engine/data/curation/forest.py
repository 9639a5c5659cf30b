"""Connect documents by pairs: components, clusters, and chains of pairs. Documents are named by their place
in an order ("rank"); the first of a component is its root.
"""

from array import array

import numpy as np


class Forest:
    """Components of N documents (union-find), and the E pairs that joined them: at most N - 1.

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
