"""Connect documents by pairs: components, clusters, and chains of pairs. Documents are named by their place
in an order ("rank"); the first of a component is its root.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np


class Link(NamedTuple):
    """A pair of documents, the child nearer to the end of the chain."""

    child: int
    parent: int
    jaccard: float


class Forest:
    """Components of N documents (union-find), with the pairs that joined them: at most N - 1."""

    def __init__(self, number: int) -> None:
        self._above_N = np.arange(number, dtype=np.int32)
        self._pairs: list[Link] = []

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
            self._pairs.append(Link(one, other, jaccard))

    def tree(self) -> Iterator[Link]:
        """For each document that is not the root of its component, the next one on the way to it."""
        neighbours: dict[int, list[tuple[int, float]]] = {}
        for one, other, found in self._pairs:
            neighbours.setdefault(one, []).append((other, found))
            neighbours.setdefault(other, []).append((one, found))
        seen = sorted(rank for rank in neighbours if self.root(rank) == rank)
        reached = set(seen)
        for rank in seen:  # grows: breadth first, so chains are short
            for other, found in neighbours[rank]:
                if other not in reached:
                    reached.add(other)
                    seen.append(other)
                    yield Link(other, rank, found)

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
