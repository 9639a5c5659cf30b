"""Objectives that compare a student with a teacher: its own, or another finished one; on all text, or on some
sources of it.
"""

from typing import ClassVar

from pydantic import Field

from atelier.engine.config.base import Json
from atelier.engine.config.registry import ObjectiveSpec


class Taught(ObjectiveSpec):
    needs_teacher: ClassVar[bool] = True

    teacher: str = Field(
        default="",
        description="the role of a finished model that it compares with; empty = the student's teacher",
    )
    sources: tuple[str, ...] = Field(
        default=(),
        description="sources of text (data.sources) of whose rows it is the mean; empty = all",
    )

    def as_identity(self) -> dict[str, Json]:
        """Without the name of the role: the model that it names is a parent."""
        identity = super().as_identity()
        identity.pop("teacher", None)
        return identity
