"""Next-token prediction: cross-entropy of each token given those before it in its document."""

from typing import ClassVar, Literal

from pydantic import Field

from atelier.engine.config.registry import ObjectiveSpec


class LM(ObjectiveSpec):
    needs_teacher: ClassVar[bool] = False

    kind: Literal["lm"] = "lm"
    weight: float = Field(default=1.0, gt=0, description="share among the role's active objectives; above 0")
