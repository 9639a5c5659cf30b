"""Formats between sites: heads of messages, reports of progress, and announcements of a training, which its
ranks write for their agent. Torch-free.
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
MOST_ROLES = 1000  # in a report of progress


def lessons() -> tuple[str, ...]:
    """The lessons that a teacher can send to other sites: its answers, and those of extensions."""
    return (ANSWERS, *sorted(kinds_of(LESSONS)))


def _is_lesson(name: str) -> str:
    if name not in lessons():
        raise ValueError(f"no lesson {name[:40]!r}; there are: {', '.join(lessons())}")
    return name


LessonName = Annotated[str, AfterValidator(_is_lesson)]


class Head(Spec):
    """The fields of all heads."""

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
        """Raise DataError if other code than that of this digest has computed it; '' = any."""
        if code and self.code != code:
            raise DataError(
                f"{place}: was computed at {self.site} by code of digest {self.code[:16] or 'unknown'}, and"
                f" here it is {code[:16]}; install the same code at both, or use --accept-code at both"
            )

    @property
    def text(self) -> bytes:
        return canonical(self.model_dump(mode="json", by_alias=True))


class Contribution(Head):
    """A site's weight delta since the last outer step. `round`: that of the outer step."""

    kind: Literal["contribution"] = "contribution"
    codec: Codec = Field(default=Codec(), description="of the body")
    fragment: int = Field(default=0, ge=0, description="of the weights, from 1; 0 = all of them")
    before: dict[SiteName, Digest] = Field(
        description="digests of the contributions in the last outer step before it was sent, by site"
    )
    safe: int = Field(ge=0, description="the last round that this site will not ask for again")
    tokens: int = Field(
        default=0, ge=0, lt=1 << 60, description="that the site has learned from, up to this one"
    )


class OfStep(Head):
    """A teacher's lesson (lessons.py) about the batch of a step, for students at other sites. `round`: the
    teacher's step, from 1.
    """

    kind: LessonName


CONTRIBUTION = "contribution"
Message = Contribution | OfStep


def head_of(data: bytes | str, place: str) -> Message:
    """Parse the head of a message. Raises DamageError for an invalid one."""
    document = parse_object(data, place, WHAT)
    kind = document.get("kind", CONTRIBUTION)
    if kind not in (CONTRIBUTION, *lessons()):
        known = ", ".join((CONTRIBUTION, *lessons()))
        raise DamageError(f"{place}: kind {str(kind)[:40]!r}, not one of {known}", place=place)
    return check_as(Contribution if kind == CONTRIBUTION else OfStep, document, place, WHAT)


def model_at(trajectory: str, step: int) -> str:
    """Identifies the model of a trajectory at a step, where a training may end and a longer one not."""
    return identify("model_at", 1, {"step": step}, {"trajectory": trajectory})


class ReaderProgress(Spec):
    """A site's progress in a lesson of another site."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    kind: Literal["progress"] = "progress"
    trajectory: Digest
    site: SiteName
    begun: int = Field(
        default=1, ge=1, description="how often it has begun: again after lost checkpoints, or other roles"
    )
    step: int = Field(ge=0, description="steps that it has learned from")
    safe: int = Field(ge=0, description="steps whose answers it will not ask for again")
    students: tuple[Digest, ...] = Field(
        default=(), max_length=MOST_ROLES, description="trajectories of the roles that this is about"
    )
    done: tuple[Digest, ...] = Field(
        default=(), max_length=MOST_ROLES, description="models (`model_at`) that are published"
    )

    @property
    def names_none(self) -> bool:
        """Whether it names no roles, as reports of an earlier version."""
        return not (self.students or self.done)

    def covers(self, students: Mapping[str, str]) -> bool:
        """Whether it is about all these roles: their models, by trajectory."""
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
        default={}, description="`before` of contributions to round 1: the digest of the first weights"
    )
    membership: Membership
    coordinator: str = Field(description="the site that decides who is in a round; any")
    is_followed: bool = Field(default=False, description="a round log is followed; no site decides")

    def may_decide(self, site: str) -> bool:
        """Whether a site may decide who is in a round."""
        return not self.is_followed and self.coordinator in (ANY, site)


class AboutTraining(Spec):
    """A site's announcement of a training whose messages it sends or receives."""

    trajectory: Digest
    site: SiteName
    sites: tuple[SiteName, ...]
    bytes: dict[str, tuple[int, ...]] = Field(
        default={},
        description="of a contribution's body by codec: of all weights, then of each fragment; empty = any",
    )
    teacher: str = Field(default="", description="the site whose answers the others learn from; '' = none")
    what: LessonName = Field(default=ANSWERS, description="the lesson that the teacher's site sends")
    most: int = Field(default=0, ge=0, description="bytes of the answers to a step, at most; 0 = any")
    ahead: int = Field(default=0, ge=0, description="steps that the teacher may be ahead of this site")
    students: dict[SiteName, dict[Digest, Digest]] = Field(
        default={}, description="models (`model_at`) of the students, by site and trajectory; empty = any"
    )
    rounds: AboutRounds | None = Field(
        default=None, description="of an elastic membership; None = a strict one"
    )
