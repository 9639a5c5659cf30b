"""How a training shares its samples among the sources: the assignment, and passes over a source at most.
Torch-free.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Literal

from pydantic import Field, model_validator

from atelier.engine.config.base import Json, Spec

Assignment = Literal["blocks", "exact"]


class Sampling(Spec):
    """Assignment of samples to sources, and passes over a source after which it stops."""

    assignment: Assignment = "blocks"
    epochs: dict[str, float] = Field(default={}, description="passes by source; others have no cap")

    @model_validator(mode="after")
    def _caps_are_exact(self) -> "Sampling":
        if self.epochs and self.assignment != "exact":
            raise ValueError(
                f"epochs of {', '.join(self.epochs)} are capped, but assignment is {self.assignment};"
                " data.assignment=exact knows the sample at which a source stops"
            )
        return self

    def identity(self, read: set[str], num_streams: int) -> dict[str, Json]:
        """Its part in the identity of a training of these sources: empty for blocks, and for one stream
        without a cap.
        """
        found: dict[str, Json] = {}
        if self.assignment != "blocks" and num_streams > 1:
            found["assignment"] = self.assignment
        if caps := {name: cap for name, cap in sorted(self.epochs.items()) if name in read}:
            found["epochs"] = caps
        return found


def sampling_of(assignment: Assignment, epochs: Mapping[str, float]) -> Sampling:
    """The sampling of sources with these caps; a cap of 0 is none."""
    return Sampling(assignment=assignment, epochs={name: cap for name, cap in epochs.items() if cap})


def cap_in_rows(epochs: float, rows: int) -> int:
    """The samples of `epochs` passes over `rows` samples, rounded down, at least 1."""
    return max(1, int(Fraction(str(epochs)) * rows))
