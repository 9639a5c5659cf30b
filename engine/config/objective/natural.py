"""Self-supervised adversarial objective: classify a paragraph as natural or model-written. Binary
cross-entropy on the row's first token (ERNIE 3.0 Titan, 2112.12731, equation 1).
"""

from typing import ClassVar, Literal

from pydantic import Field

from atelier.engine.config.row_classes import RowClasses


class Natural(RowClasses):
    needs_teacher: ClassVar[bool] = False
    reads: ClassVar[str] = "natural"
    extras: ClassVar[tuple[str, ...]] = ("bidirectional_B",)
    source: ClassVar[str] = "imitations"

    kind: Literal["natural"] = "natural"
    weight: float = Field(default=1.0, gt=0, description="share among the role's active objectives; above 0")

    @property
    def num_classes(self) -> int:
        return 2
