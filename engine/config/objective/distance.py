"""Sentence distance: are two fragments adjacent, apart in one document, or from two documents? (ERNIE 3.0,
2107.02137)
"""

from typing import ClassVar, Literal

from pydantic import Field

from atelier.engine.config.row_classes import Comparisons, RowClasses

SHORTEST = 8  # tokens of a fragment, about


class Distance(RowClasses):
    needs_teacher: ClassVar[bool] = False
    reads: ClassVar[str] = "distance"
    extras: ClassVar[tuple[str, ...]] = ("bidirectional_B",)

    kind: Literal["distance"] = "distance"
    weight: float = Field(default=1.0, gt=0, description="share among the role's active objectives; above 0")

    @property
    def least_sequence(self) -> int:
        """Two fragments, <|cls|> and two separators."""
        return 2 * SHORTEST + 3

    @property
    def num_classes(self) -> int:
        return 3

    @property
    def comparisons(self) -> Comparisons:
        """Relation 0: the second fragment follows the first; relation 1: it is of another document."""
        return (((0, 0, 1),), (), ((1, 0, 1),))
