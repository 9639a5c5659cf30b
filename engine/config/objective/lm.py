"""Next-token prediction: cross-entropy of each token given those before it in its document."""

from typing import ClassVar, Literal

from pydantic import Field

from atelier.engine.config.base import Json
from atelier.engine.config.registry import ObjectiveSpec


class LM(ObjectiveSpec):
    needs_teacher: ClassVar[bool] = False

    kind: Literal["lm"] = "lm"
    weight: float = Field(default=1.0, gt=0, description="share among the role's active objectives; above 0")
    z_weight: float = Field(
        default=0.0,
        ge=0,
        description="weight of (log Z)^2 beside it, Z the sum of exp(logits) (z-loss; PaLM has 1e-4)",
    )

    def numbers(self) -> dict[str, Json]:
        """As in the base class; the z-loss does not change the rows either."""
        return {name: value for name, value in super().numbers().items() if name != "z_weight"}
