"""Base of objectives whose rows are not windows of text. Torch-free."""

from pydantic import Field, field_validator

from atelier.engine.config.base import Json
from atelier.engine.config.registry import ObjectiveSpec

TOKENS = 8  # minimum of a row


class OwnRows(ObjectiveSpec):
    """An objective whose rows are not windows of text."""

    rows: float = Field(default=1.0, gt=0, description="share of the training samples; above 0")
    sequence: int = Field(
        default=0, ge=0, description="tokens per row, at most train.sequence; 0 = train.sequence"
    )

    @field_validator("sequence")
    @classmethod
    def _long_enough(cls, sequence: int) -> int:
        if 0 < sequence < TOKENS:
            raise ValueError(f"{sequence} tokens are too few; give {TOKENS} or more, or 0")
        return sequence

    def numbers(self) -> dict[str, Json]:
        """The fields without a sequence of 0: identities are older than this field."""
        found = super().numbers()
        return (
            found if self.sequence else {name: value for name, value in found.items() if name != "sequence"}
        )

    def row_tokens(self, sequence: int) -> int:
        return min(sequence, self.sequence or sequence)
