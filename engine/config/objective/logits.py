"""Distillation on logits: T^2 KL(softmax(teacher/T) || softmax(student/T)), mean over tokens (Hinton et al.,
1503.02531).
"""

from typing import ClassVar, Literal

from pydantic import Field

from atelier.engine.config.error import ConfigError
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.taught import Taught


class Logits(Taught):
    reads_logits_only: ClassVar[bool] = True

    kind: Literal["logits"] = "logits"
    weight: float = Field(default=0.5, gt=0, description="share among the role's active objectives; above 0")

    def check(self, place: str, key: str, model: ModelSpec, teacher: tuple[str, ModelSpec] | None) -> None:
        if teacher is None:
            return
        mine, theirs = (getattr(one, "vocab_padding", 0) for one in (model, teacher[1]))
        if mine != theirs:
            raise ConfigError(
                f"{place}objective.{key}",
                f"compares logits, but {teacher[0]} has {theirs} rows of padding and the student {mine}",
                f"{place}model.vocab_padding={theirs}",
            )

    temperature: float = Field(default=1.0, gt=0, description="softens both distributions; above 0")
