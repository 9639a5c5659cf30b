"""Distillation on attention: KL(A_teacher || A_student) of the last layers' attention distributions, mean
over heads (MiniLM, 2002.10957, equation 7; ERNIE 3.0 Titan, 2112.12731, section 5).
"""

from typing import ClassVar, Literal

from pydantic import Field

from atelier.engine.config.base import Count
from atelier.engine.config.registry import Compared, ObjectiveSpec


class Attention(ObjectiveSpec):
    needs_teacher: ClassVar[bool] = True
    compares: ClassVar[Compared] = "attention"

    kind: Literal["attention"] = "attention"
    weight: float = Field(default=0.5, gt=0, description="share among the role's active objectives; above 0")
    relation_heads: Count | Literal["auto"] = Field(
        default="auto",
        description="heads into which both sides' queries and keys are split anew (2012.15828); auto = the "
        "student's",
    )
    auxiliary: bool = Field(
        default=True,
        description="compare a layer stacked on the student, dropped from the finished model; false = its "
        "last block, whose MLP and output matrix then learn nothing from it",
    )
