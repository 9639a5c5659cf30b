"""Settings of the training in which a student, a pretrained model with an adapter, learns answers to prompts,
also from a teacher that learns them too. Torch-free.
"""

from typing import Literal

from pydantic import Field, model_validator

from atelier.engine.config.base import Count, Spec
from atelier.engine.config.chats import Chats
from atelier.engine.config.registry import Objective, Optim
from atelier.engine.config.role import Trainable
from atelier.engine.config.sections import sections_of, with_sections

TEACHER, STUDENT = "teacher", "student"  # names of the roles
ALL_WEIGHTS, ONE_SITE, NO_CODEC = "all-weights", "one-site", "no-codec"  # controls
FULL_STUDENT = f"{STUDENT}-{ALL_WEIGHTS}"  # a role too


@with_sections("tune")
class Tune(Spec):
    chats: Chats = Field(default=Chats(source="stdlib"), description="prompts and answers to learn")
    objective: dict[str, Objective] = Field(
        description="objectives of the student; the teacher has those without a teacher"
    )
    optim: Optim = Field(description="optimiser of the teacher")
    student_optim: Optim = Field(description="optimiser of the student")
    trainable: Trainable = Field(
        default=Trainable(kind="lora"), description="what is trained of the student: an adapter, or all"
    )
    steps: Count = Field(description="steps of both models, train.global_batch rows each")
    sequence: Count = Field(description="tokens per row; longer rows are left out")
    asked: Count = Field(default=200, description="held-out prompts that the models are asked, at most")
    answer: Count = Field(default=64, description="most tokens of an answer to such a prompt")
    controls: tuple[Literal["all-weights", "one-site", "no-codec"], ...] = Field(
        default=(),
        description="also train students for comparison: without an adapter (all-weights); with all models at"
        " one site; with contributions that no codec compresses",
    )
    path_only: bool = Field(
        default=False, description="the run is to show that the path works; the report says so of its scores"
    )

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
        if len({*self.controls}) < len(self.controls):
            raise ValueError(f"controls={', '.join(self.controls)}: give each once")
        if ALL_WEIGHTS in self.controls and self.trainable.kind == "full":
            raise ValueError(f"controls: {ALL_WEIGHTS} is the student itself with trainable.kind=full")
        if self.trainable.kind in ("none", "prompt"):
            raise ValueError(f"trainable.kind={self.trainable.kind} is not built here; lora, parts or full")
        return self
