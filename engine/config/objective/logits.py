"""Distillation of logits: T^2 KL(softmax(teacher/T) || softmax(student/T)), mean over tokens (Hinton et al.,
1503.02531). Padding rows of the vocabulary are excluded; teacher and student may differ in them.
"""

from typing import ClassVar, Literal

from pydantic import Field

from atelier.engine.config.taught import Taught


class Logits(Taught):
    reads_logits_only: ClassVar[bool] = True

    kind: Literal["logits"] = "logits"
    weight: float = Field(default=0.5, gt=0, description="share among the role's active objectives; above 0")

    temperature: float = Field(default=1.0, gt=0, description="softens both distributions; above 0")
