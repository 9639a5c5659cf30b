"""Distillation on hidden states: mean squared error to the teacher's final ones, after a learned projection
that is dropped from the finished model (FitNets, 1412.6550; TinyBERT, 1909.10351, equation 8).
"""

from typing import ClassVar, Literal

from pydantic import Field

from atelier.engine.config.registry import Compared, ObjectiveSpec


class Hidden(ObjectiveSpec):
    needs_teacher: ClassVar[bool] = True
    compares: ClassVar[Compared] = "hidden"

    kind: Literal["hidden"] = "hidden"
    weight: float = Field(default=0.5, gt=0, description="share among the role's active objectives; above 0")
