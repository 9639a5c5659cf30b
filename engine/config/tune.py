"""A small model that learns prompts and their answers from a pretrained one, which learns them too.
Torch-free.
"""

from pydantic import Field, model_validator

from atelier.engine.config.base import Count, Spec
from atelier.engine.config.chats import Chats
from atelier.engine.config.link import Link
from atelier.engine.config.registry import Model, Objective, Optim

TEACHER, STUDENT = "teacher", "student"  # roles


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
    link: Link = Field(
        default=Link(),
        description="the site of each role, and what the student hears of the teacher; over `sites` the"
        " student is at home, the teacher at another",
    )

    @model_validator(mode="after")
    def _fits(self) -> "Tune":
        if self.link.rows:
            raise ValueError("link.rows: its roles live apart; link.roles says where")
        if strange := sorted(
            {role for roles in self.link.roles.values() for role in roles} - {TEACHER, STUDENT}
        ):
            raise ValueError(f"link.roles: {strange[0]} is neither {TEACHER} nor {STUDENT}")
        needs = {type(spec).needs_teacher for spec in self.objective.values()}
        if needs != {True, False}:
            what = (
                "the teacher; give one of kind logits"
                if True not in needs
                else "answers; give one of kind chat"
            )
            raise ValueError(f"objective: none of it learns from {what}")
        return self

    def at_site(self, site: str) -> "Tune":
        """The same settings as they are at one of the link's sites."""
        return self.model_copy(update={"link": self.link.at_site(site)})
