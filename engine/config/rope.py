"""Rotary positions (RoPE, 2104.09864), and scaling of their frequencies for texts longer than in training.
Torch-free.
"""

from typing import Literal, Self

from pydantic import Field, model_validator

from atelier.engine.config.base import Spec

USES: dict[str, tuple[str, ...]] = {
    "plain": (),
    "linear": ("factor",),
    "llama3": ("factor", "original", "low", "high"),
    "yarn": ("factor", "original", "fast", "slow", "attention"),
}


class Rope(Spec):
    """`linear` divides all frequencies (2306.15595); `llama3` those of waves longer than the original text
    (2407.21783); `yarn` blends by a frequency's turns in the original text and scales scores (2309.00071).
    """

    kind: Literal["plain", "linear", "llama3", "yarn"] = Field(default="plain", description=", ".join(USES))
    factor: float = Field(default=1.0, ge=1, description="factor by which texts get longer")
    original: int = Field(default=0, ge=0, description="llama3, yarn: tokens per text in training")
    low: float = Field(default=1.0, gt=0, description="llama3: divide frequencies with fewer turns than this")
    high: float = Field(default=4.0, gt=0, description="llama3: keep frequencies with more turns than this")
    fast: float = Field(default=32.0, gt=0, description="yarn: keep frequencies with more turns than this")
    slow: float = Field(default=1.0, gt=0, description="yarn: divide frequencies with fewer turns than this")
    attention: float = Field(
        default=0.0, ge=0, description="yarn: scale of cosines and sines; 0 = 0.1 ln(factor) + 1"
    )

    @model_validator(mode="after")
    def _used(self) -> Self:
        for name, field in type(self).model_fields.items():
            if name != "kind" and name not in USES[self.kind] and getattr(self, name) != field.default:
                raise ValueError(f"{name} is not used by kind {self.kind}: leave it out")
        if "original" in USES[self.kind] and not self.original:
            raise ValueError(f"kind {self.kind} needs original, the tokens per text in the original training")
        if self.kind == "llama3" and self.low >= self.high:
            raise ValueError(f"low {self.low:g} is not less than high {self.high:g}")
        return self
