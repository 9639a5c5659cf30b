"""Universal knowledge-text prediction: hide the relation of a triple, or words of the sentence that states it
(ERNIE 3.0, 2107.02137).
"""

from typing import ClassVar, Literal

from pydantic import Field

from atelier.engine.config.own_rows import OwnRows


class Knowledge(OwnRows):
    needs_teacher: ClassVar[bool] = False
    term: ClassVar[str] = "lm"
    reads: ClassVar[str] = "knowledge"
    hides_units: ClassVar[bool] = True
    extras: ClassVar[tuple[str, ...]] = ("bidirectional_B",)
    source: ClassVar[str] = "triples"

    kind: Literal["knowledge"] = "knowledge"
    weight: float = Field(default=1.0, gt=0, description="share among the role's active objectives; above 0")
    rate: float = Field(
        default=0.15,
        gt=0,
        lt=1,
        description="share of a sentence's tokens hidden if the relation is not; above 0, below 1",
    )
