"""Shared by the objectives with rows of their own. Torch-free."""

from pydantic import Field, field_validator

from atelier.engine.config.base import Json
from atelier.engine.config.registry import ObjectiveSpec

TOKENS = 8  # of a row, at least


class OwnRows(ObjectiveSpec):
    """An objective whose rows are not windows of text."""

    rows: float = Field(default=1.0, gt=0, description="share of the training samples; above 0")
    sequence: int = Field(
        default=0, ge=0, description="tokens of its rows, at most train.sequence; 0 = train.sequence"
    )

    @field_validator("sequence")
    @classmethod
    def _long_enough(cls, sequence: int) -> int:
        if 0 < sequence < TOKENS:
            raise ValueError(f"{sequence} tokens are too few; give {TOKENS} or more, or 0")
        return sequence

    def numbers(self) -> dict[str, Json]:
        """Without a length that says nothing: what it defines was identified before there was one."""
        found = super().numbers()
        return (
            found if self.sequence else {name: value for name, value in found.items() if name != "sequence"}
        )

    def row_tokens(self, sequence: int) -> int:
        return min(sequence, self.sequence or sequence)
