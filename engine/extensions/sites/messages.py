"""What sites of a training write to each other: heads of messages and how far a reader has come; and what its
ranks say of a training to their agent. Torch-free.
"""

import re
from collections.abc import Collection, Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from atelier.engine.config.base import ANSWERS, Spec, canonical
from atelier.engine.config.document import check_as, parse_object
from atelier.engine.config.error import DamageError, DataError
from atelier.engine.config.extensions import kinds_of
from atelier.engine.config.lesson_state import LESSONS
from atelier.engine.config.record import Digest, FileEntry, identify
from atelier.engine.config.site_name import ANY, SiteName
from atelier.engine.extensions.sites.config.codec import Codec
from atelier.engine.extensions.sites.config.outer import Membership

BODY, WHAT = "tensors.safetensors", "the head of a message"
MOST_ROLES = 1000  # of which a progress says something


def lessons() -> tuple[str, ...]:
    """By what a teacher at another site can teach: its answers, or what an extension has for it."""
    return (ANSWERS, *sorted(kinds_of(LESSONS)))


def _is_lesson(name: str) -> str:
    if name not in lessons():
        raise ValueError(f"no lesson {name[:40]!r}; there are: {', '.join(lessons())}")
    return name


LessonName = Annotated[str, AfterValidator(_is_lesson)]


class Head(Spec):
    """What the heads of all messages have."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    trajectory: Digest
    site: SiteName
    round: int = Field(ge=1, lt=10**9, description="number of the message, from 1")
    body: FileEntry
    code: str = Field(
        default="", pattern=r"^[0-9a-f]{0,64}$", description="digest of the code map that computed it"
    )

    @field_validator("body")
    @classmethod
    def _is_a_body(cls, body: FileEntry) -> FileEntry:
        if body.path != BODY or not re.fullmatch("[0-9a-f]{64}", body.sha256) or body.bytes < 0:
            raise ValueError(f"a body is {BODY} with a sha256 of 64 hex digits")
        return body

    def check_code(self, code: str, place: str) -> None:
        """Raise DataError where other code than that of this digest has computed it; '' = any."""
        if code and self.code != code:
            raise DataError(
                f"{place}: was computed at {self.site} by code of digest {self.code[:16] or 'unknown'}, and"
                f" here it is {code[:16]}; install the same code at both, or go on with --accept-code at both"
            )

    @property
    def text(self) -> bytes:
        return canonical(self.model_dump(mode="json", by_alias=True))


class Contribution(Head):
    """By what a site's weights moved since the last outer step; `round` is of the outer step."""

    kind: Literal["contribution"] = "contribution"
    codec: Codec = Field(default=Codec(), description="in what form the body holds the weights")
    fragment: int = Field(default=0, ge=0, description="of the weights, from 1; 0 = all of them")
    before: dict[SiteName, Digest] = Field(
        description="digests of what was added in the last outer step before it was sent, by site"
    )
    safe: int = Field(ge=0, description="the last round that this site will not ask for again")
    tokens: int = Field(
        default=0, ge=0, lt=1 << 60, description="that the site has learned from, up to this one"
    )


class OfStep(Head):
    """A lesson of a teacher about the batch of a step, to students at other sites: its answers, or another
    one (lessons.py). `round` is the teacher's step, from 1.
    """

    kind: LessonName


CONTRIBUTION = "contribution"
Message = Contribution | OfStep


def head_of(data: bytes | str, place: str) -> Message:
    """The head of a message. Raises DamageError for what is none."""
    document = parse_object(data, place, WHAT)
    kind = document.get("kind", CONTRIBUTION)
    if kind not in (CONTRIBUTION, *lessons()):
        known = ", ".join((CONTRIBUTION, *lessons()))
        raise DamageError(f"{place}: kind {str(kind)[:40]!r}, not one of {known}", place=place)
    return check_as(Contribution if kind == CONTRIBUTION else OfStep, document, place, WHAT)


def model_at(trajectory: str, step: int) -> str:
    """Names what a trajectory has made at a step, at which a training of it may end, and a longer one not."""
    return identify("model_at", 1, {"step": step}, {"trajectory": trajectory})


class ReaderProgress(Spec):
    """How far a site has come in what it learns from another one's answers."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    kind: Literal["progress"] = "progress"
    trajectory: Digest
    site: SiteName
    begun: int = Field(
        default=1, ge=1, description="how often it has begun anew: its checkpoints lost, or with other roles"
    )
    step: int = Field(ge=0, description="steps that it has learned from")
    safe: int = Field(ge=0, description="steps whose answers it will not ask for again")
    students: tuple[Digest, ...] = Field(
        default=(), max_length=MOST_ROLES, description="trajectories of the roles of which this is said"
    )
    done: tuple[Digest, ...] = Field(
        default=(), max_length=MOST_ROLES, description="of roles whose models are published: `model_at`"
    )

    @property
    def names_none(self) -> bool:
        """Whether it does not say of which roles: a version before did not."""
        return not (self.students or self.done)

    def covers(self, students: Mapping[str, str]) -> bool:
        """Whether this is said of all these roles: their models, by trajectory."""
        return all(each in self.students or model in self.done for each, model in students.items())

    def is_done_with(self, students: Mapping[str, str]) -> bool:
        return len(students) > 0 and {*students.values()} <= {*self.done}

    def finished(self, models: Collection[str]) -> tuple[str, ...]:
        """`done` with these."""
        return tuple(dict.fromkeys([*self.done, *models]))[-MOST_ROLES:]


class AboutRounds(Spec):
    """The rounds of an elastic membership."""

    rows: dict[SiteName, int]
    every: int = Field(ge=1)
    first: int = Field(default=1, ge=1, description="the first round of the trajectory")
    last: int = Field(ge=1, description="the last one")
    begun: dict[SiteName, Digest] = Field(
        default={}, description="what contributions to round 1 say that was added before: the first weights"
    )
    membership: Membership
    coordinator: str = Field(description="the site that decides who is in; any")
    is_followed: bool = Field(default=False, description="a round log says it, and nobody decides")

    def may_decide(self, site: str) -> bool:
        """Whether a site decides who is in a round."""
        return not self.is_followed and self.coordinator in (ANY, site)


class AboutTraining(Spec):
    """What a site's ranks say of a training whose messages it takes part in."""

    trajectory: Digest
    site: SiteName
    sites: tuple[SiteName, ...]
    bytes: dict[str, tuple[int, ...]] = Field(
        default={},
        description="of a contribution's body by codec: of all weights, then of each fragment; empty = any",
    )
    teacher: str = Field(default="", description="the site whose answers the others learn from; '' = none")
    what: LessonName = Field(default=ANSWERS, description="what that site sends")
    most: int = Field(default=0, ge=0, description="bytes of the answers to a step, at most; 0 = any")
    ahead: int = Field(default=0, ge=0, description="steps that the teacher may be before this site")
    students: dict[SiteName, dict[Digest, Digest]] = Field(
        default={}, description="models (`model_at`) of those that learn, by site and trajectory; else: any"
    )
    rounds: AboutRounds | None = Field(
        default=None, description="of an elastic membership; None = all are in"
    )
