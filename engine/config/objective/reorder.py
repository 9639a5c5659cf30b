"""Sentence reordering: in which order are a paragraph's permuted segments? (ERNIE 3.0, 2107.02137)"""

import math
from typing import ClassVar, Literal

from pydantic import Field

from atelier.engine.config.registry import RowClasses


class Reorder(RowClasses):
    needs_teacher: ClassVar[bool] = False
    reads: ClassVar[str] = "reorder"
    extras: ClassVar[tuple[str, ...]] = ("bidirectional_B",)

    kind: Literal["reorder"] = "reorder"
    weight: float = Field(default=1.0, gt=0, description="share among the role's active objectives; above 0")
    rows: float = Field(default=1.0, gt=0, description="share of the training samples; above 0")
    max_segments: int = Field(
        default=3, ge=2, le=5, description="a paragraph is cut into 1 to this many segments"
    )

    @property
    def num_classes(self) -> int:
        """k = sum over n = 1 .. max_segments of n!, the number of orders."""
        return sum(math.factorial(n) for n in range(1, self.max_segments + 1))
