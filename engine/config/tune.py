"""Settings of the flow in which a small model learns prompts and answers, also from a pretrained model that
learns them too. Torch-free.
"""

from pydantic import Field, model_validator

from atelier.engine.config.base import Count, Spec
from atelier.engine.config.chats import Chats
from atelier.engine.config.registry import Model, Objective, Optim
from atelier.engine.config.sections import sections_of, with_sections

TEACHER, STUDENT = "teacher", "student"  # names of the roles


@with_sections("tune")
class Tune(Spec):
    chats: Chats = Field(default=Chats(source="stdlib"), description="conversations to learn")
    student: Model = Field(description="the student network, from random weights")
    objective: dict[str, Objective] = Field(
        description="objectives of the student; the pretrained model has those without a teacher"
    )
    optim: Optim = Field(description="optimiser of both models")
    steps: Count = Field(description="steps of both models, train.global_batch rows each")
    sequence: Count = Field(description="tokens per row; longer rows are left out")

    @model_validator(mode="after")
    def _fits(self) -> "Tune":
        for value in sections_of(self).values():
            value.check_section(self)
        needs = {type(spec).needs_teacher for spec in self.objective.values()}
        if needs != {True, False}:
            what = (
                "the teacher; add one of kind logits"
                if True not in needs
                else "answers; add one of kind chat"
            )
            raise ValueError(f"objective: none learns from {what}")
        return self
