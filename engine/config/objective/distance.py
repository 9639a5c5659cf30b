"""Sentence distance: classify two fragments as adjacent, from one document, or from two (ERNIE 3.0,
2107.02137).
"""

from typing import ClassVar, Literal

from pydantic import Field

from atelier.engine.config.row_classes import Comparisons, RowClasses

SHORTEST = 8  # approximate tokens of a fragment


class Distance(RowClasses):
    needs_teacher: ClassVar[bool] = False
    reads: ClassVar[str] = "distance"
    extras: ClassVar[tuple[str, ...]] = ("bidirectional_B",)

    kind: Literal["distance"] = "distance"
    weight: float = Field(default=1.0, gt=0, description="share among the role's active objectives; above 0")

    @property
    def least_sequence(self) -> int:
        """Room for two fragments, <|cls|> and two separators."""
        return 2 * SHORTEST + 3

    @property
    def num_classes(self) -> int:
        return 3

    @property
    def comparisons(self) -> Comparisons:
        """Relation 0: the second fragment follows the first. Relation 1: it is from another document."""
        return (((0, 0, 1),), (), ((1, 0, 1),))
