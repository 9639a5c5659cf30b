"""Knowledge-masked language modelling: hide and predict whole words, phrases and named entities (ERNIE 3.0,
2107.02137).
"""

from typing import ClassVar, Literal

from pydantic import Field

from atelier.engine.config.own_rows import OwnRows


class MLM(OwnRows):
    needs_teacher: ClassVar[bool] = False
    term: ClassVar[str] = "lm"
    reads: ClassVar[str] = "mlm"
    hides_units: ClassVar[bool] = True
    extras: ClassVar[tuple[str, ...]] = ("bidirectional_B",)

    kind: Literal["mlm"] = "mlm"
    weight: float = Field(default=1.0, gt=0, description="share among the role's active objectives; above 0")
    rate: float = Field(
        default=0.15,
        gt=0,
        lt=1,
        description="share of a row's tokens to hide and predict; above 0, below 1",
    )
    phrase_count: int = Field(
        default=20, ge=1, description="two words form a phrase if they are adjacent this often, and"
    )
    phrase_bits: float = Field(
        default=6.0, ge=0, description="if their pointwise mutual information reaches this many bits"
    )
