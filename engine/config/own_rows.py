"""What objectives with rows of their own have in common. Torch-free."""

from pydantic import Field

from atelier.engine.config.registry import ObjectiveSpec


class OwnRows(ObjectiveSpec):
    """An objective whose rows are not windows of text."""

    rows: float = Field(default=1.0, gt=0, description="share of the training samples; above 0")
    sequence: int = Field(
        default=0, ge=0, description="tokens of its rows, at most train.sequence; 0 = train.sequence"
    )

    def row_tokens(self, sequence: int) -> int:
        return min(sequence, self.sequence or sequence)
