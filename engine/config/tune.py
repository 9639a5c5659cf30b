"""A small model that learns prompts and their answers from a pretrained one, which learns them too.
Torch-free.
"""

from pydantic import Field, model_validator

from atelier.engine.config.base import Count, Spec
from atelier.engine.config.chats import Chats
from atelier.engine.config.registry import Model, Objective, Optim
from atelier.engine.config.sections import sections_of, with_sections

TEACHER, STUDENT = "teacher", "student"  # roles


@with_sections("tune")
class Tune(Spec):
    chats: Chats = Field(default=Chats(source="stdlib"), description="prompts and their answers")
    student: Model = Field(
        description="the network that learns from the pretrained model; it begins at a seed"
    )
    objective: dict[str, Objective] = Field(
        description="the student's; the pretrained model has those of them that need no teacher"
    )
    optim: Optim = Field(description="of both")
    steps: Count = Field(description="of both, on the same rows, of which each has train.global_batch")
    sequence: Count = Field(description="tokens of a row; what is longer is left out")

    @model_validator(mode="after")
    def _fits(self) -> "Tune":
        for value in sections_of(self).values():
            value.check_section(self)
        needs = {type(spec).needs_teacher for spec in self.objective.values()}
        if needs != {True, False}:
            what = (
                "the teacher; give one of kind logits"
                if True not in needs
                else "answers; give one of kind chat"
            )
            raise ValueError(f"objective: none of it learns from {what}")
        return self
