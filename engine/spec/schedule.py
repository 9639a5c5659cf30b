"""Learning-rate schedules as pure functions of the step; they alone decide what depends on a training's end.
Torch-free.
"""

import math
from typing import Any, Literal

from pydantic import Field, model_validator

from engine.spec.base import Kind


class Schedule(Kind):
    """`constant` and the stable part of `wsd` do not know where training ends; `cosine`, `linear` do from
    their first step.
    """

    kind: Literal["constant", "linear", "cosine", "wsd"] = Field(
        default="wsd", description="constant, linear, cosine or wsd"
    )
    warmup: int = Field(default=0, ge=0, description="steps of linear warm-up from the role's first step")
    decay: float = Field(
        default=0.2, gt=0, le=1, description="wsd: the share of all steps spent in the final decay"
    )
    floor: float = Field(default=0.0, ge=0, le=1, description="lr at the end, as a share of the peak")

    @model_validator(mode="after")
    def _floor(self) -> "Schedule":
        if self.kind == "constant" and self.floor:
            raise ValueError("a constant schedule has no floor")
        return self

    def branch_step(self, start: int, end: int) -> int:
        """The first step whose lr depends on `end`: `end` itself when none does, `start` when all do."""
        if self.kind == "constant":
            return end
        if self.kind == "wsd":
            return max(start, end - max(1, round(self.decay * (end - start))))
        return start

    def factor(self, step: int, start: int, end: int) -> float:
        """lr at `step` (start <= step < end) as a share of the peak. WSD decays linearly (2404.06395 section
        4; 2405.18392).
        """
        done = step - start
        warm = min(1.0, (done + 1) / (self.warmup + 1)) if self.warmup else 1.0
        if self.kind == "constant":
            return warm
        if self.kind == "wsd":
            first = self.branch_step(start, end)
            left = 1.0 if step < first else (end - step) / (end - first + 1)
            return warm * (self.floor + (1 - self.floor) * left)
        share = min(1.0, max(0.0, (done - self.warmup) / max(1, end - start - self.warmup)))
        fall = 1.0 - share if self.kind == "linear" else 0.5 * (1 + math.cos(math.pi * share))
        return warm * (self.floor + (1 - self.floor) * fall)

    def trunk(self) -> dict[str, Any]:
        """Identity of the part that does not know the end: `constant` and a `wsd` trunk are the same
        thing.
        """
        return {"kind": "constant", **({"warmup": self.warmup} if self.warmup else {})}
