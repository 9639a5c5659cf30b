"""Distillation of hidden states: mean squared error to the teacher's final states after a learned projection,
which is dropped from the finished model (FitNets, 1412.6550; TinyBERT, 1909.10351, equation 8).
"""

from typing import Literal

from pydantic import Field

from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.taught import Taught


class Hidden(Taught):
    kind: Literal["hidden"] = "hidden"
    weight: float = Field(default=0.5, gt=0, description="share among the role's active objectives; above 0")

    def added(self, model: ModelSpec, teacher_hidden: int) -> dict[str, tuple[int, ...]]:
        return {"projection.weight": (teacher_hidden, model.hidden)}

    def divided_by_tensor(self, teacher: tuple[str, ModelSpec]) -> dict[str, int]:
        name, model = teacher
        return {f"the width of {name}, which {{key}} compares,": model.hidden}
