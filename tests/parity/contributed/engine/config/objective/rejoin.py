"""Predict the tokens that follow those which an encoder reads."""

from typing import ClassVar, Literal

from pydantic import Field

from atelier.engine.config.batch import ENCODER
from atelier.engine.config.own_rows import OwnRows


class Rejoin(OwnRows):
    term: ClassVar[str] = "lm"
    reads: ClassVar[str] = "rejoin"
    extras: ClassVar[tuple[str, ...]] = ENCODER

    kind: Literal["rejoin"] = "rejoin"
    weight: float = Field(default=1.0, gt=0, description="share among the role's active objectives; above 0")
    before: int = Field(default=8, ge=1, description="tokens that the encoder reads")

    @property
    def encoder_length(self) -> int:
        return self.before
