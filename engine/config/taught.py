"""Base of objectives that compare a student with its teacher or another finished model, on all text or some
sources.
"""

from typing import ClassVar

from pydantic import Field

from atelier.engine.config.base import Json
from atelier.engine.config.registry import ObjectiveSpec


class Taught(ObjectiveSpec):
    needs_teacher: ClassVar[bool] = True

    teacher: str = Field(
        default="",
        description="role of a finished model to compare with; empty = the student's teacher",
    )
    sources: tuple[str, ...] = Field(
        default=(),
        description="text sources (data.sources) to average over; empty = all",
    )

    def as_identity(self) -> dict[str, Json]:
        """Without the role's name: the model that it names is a parent."""
        identity = super().as_identity()
        identity.pop("teacher", None)
        return identity
