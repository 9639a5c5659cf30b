"""Sentence reordering: classify the order of a paragraph's permuted segments (ERNIE 3.0, 2107.02137)."""

import itertools
from functools import cache
from typing import ClassVar, Literal

from pydantic import Field

from atelier.engine.config.row_classes import Comparisons, RowClasses

SHORTEST = 16  # tokens of a paragraph


@cache
def orders(max_segments: int) -> list[tuple[int, ...]]:
    """The order of each class: (0,); then the orders of two segments, of three, and so on, in lexicographic
    order. Class c > 0 has segment orders[c][p] of the text at place p.

    The classes of n segments are sum_{i<n} i! .. sum_{i<=n} i! - 1; the first of them is the identity.
    """
    return [o for n in range(1, max_segments + 1) for o in itertools.permutations(range(n))]


class Reorder(RowClasses):
    needs_teacher: ClassVar[bool] = False
    reads: ClassVar[str] = "reorder"
    extras: ClassVar[tuple[str, ...]] = ("bidirectional_B",)

    kind: Literal["reorder"] = "reorder"
    weight: float = Field(default=1.0, gt=0, description="share among the role's active objectives; above 0")
    max_segments: int = Field(
        default=3, ge=2, le=5, description="a paragraph is cut into 1 to this many segments"
    )

    @property
    def least_sequence(self) -> int:
        """Room for a paragraph, <|cls|> and the separators."""
        return SHORTEST + self.max_segments

    @property
    def num_classes(self) -> int:
        """k = sum over n = 1 .. max_segments of n!, the number of orders."""
        return len(orders(self.max_segments))

    @property
    def comparisons(self) -> Comparisons:
        """One relation: the second segment follows the first in the text."""
        places = [
            [order.index(segment) for segment in range(len(order))] for order in orders(self.max_segments)
        ]
        return tuple(tuple((0, i, j) for i, j in itertools.pairwise(one)) for one in places)
