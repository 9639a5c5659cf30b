"""Prefix language modelling: the encoder reads the start of a text, the decoder continues it (T5, 1910.10683,
section 3.2.3).
"""

from typing import ClassVar, Literal

from pydantic import Field

from atelier.engine.config.batch import ENCODER
from atelier.engine.config.own_rows import OwnRows


class PrefixLM(OwnRows):
    needs_teacher: ClassVar[bool] = False
    term: ClassVar[str] = "lm"
    reads: ClassVar[str] = "prefix"
    extras: ClassVar[tuple[str, ...]] = ENCODER

    kind: Literal["prefix"] = "prefix"
    weight: float = Field(default=1.0, gt=0, description="share among the role's active objectives; above 0")
    encoder: int = Field(default=512, ge=8, description="maximum of encoder tokens")

    @property
    def encoder_length(self) -> int:
        return self.encoder
