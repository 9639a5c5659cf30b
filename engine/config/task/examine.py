"""Config of the task that examines a model."""

from pydantic import Field

from atelier.engine.config.base import Spec
from atelier.engine.config.exam import Examine


class ExamineConfig(Spec):
    """The sets are inputs `set.<key>`, the exams outputs `<key>`."""

    examine: Examine
    trained: int | None = Field(default=None, description="tokens of the rows that the model was trained on")
    threads: int = Field(default=1, ge=1, description="CPU threads of each rank")
