"""Rotary positions: how the frequencies of RoPE (2104.09864) are stretched for texts longer than those that a
model was trained on. Torch-free.
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
    """`linear` divides all frequencies (2306.15595), `llama3` those of waves longer than the original text
    (2407.21783), `yarn` blends by the turns that a frequency makes in it and scales scores (2309.00071).
    """

    kind: Literal["plain", "linear", "llama3", "yarn"] = Field(default="plain", description=", ".join(USES))
    factor: float = Field(default=1.0, ge=1, description="how many times longer texts become")
    original: int = Field(default=0, ge=0, description="llama3, yarn: tokens of the texts of the training")
    low: float = Field(default=1.0, gt=0, description="llama3: turns in them up to which all is divided")
    high: float = Field(default=4.0, gt=0, description="llama3: turns from which nothing is")
    fast: float = Field(default=32.0, gt=0, description="yarn: turns from which nothing is divided")
    slow: float = Field(default=1.0, gt=0, description="yarn: turns up to which all is")
    attention: float = Field(
        default=0.0, ge=0, description="yarn: factor of cosines and sines; 0 = 0.1 ln(factor) + 1"
    )

    @model_validator(mode="after")
    def _used(self) -> Self:
        for name, field in type(self).model_fields.items():
            if name != "kind" and name not in USES[self.kind] and getattr(self, name) != field.default:
                raise ValueError(f"{name} means nothing for kind {self.kind}: leave it out")
        if "original" in USES[self.kind] and not self.original:
            raise ValueError(f"kind {self.kind} needs original, the tokens of the texts of the training")
        if self.kind == "llama3" and self.low >= self.high:
            raise ValueError(f"low {self.low:g} is not less than high {self.high:g}")
        return self
