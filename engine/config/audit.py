"""The audit of a model: which questions of evaluation sets it, or what taught it, had read. Torch-free.

An artifact of kind `audit` has one file, audit.json: an AuditResult.
"""

from typing import Literal, NotRequired, TypedDict

from pydantic import Field

from atelier.engine.config.base import Json, Spec
from atelier.engine.config.data_plan import DataPlan

KIND, RESULT = "audit", "audit.json"
CLEAN, OVERLAP, UNKNOWN = 0, 3, 4  # exit codes of `atelier audit`
# of a question: read: a training or a tokenizer read text of it; unknown: perhaps; unread: text of it lies in
# a corpus, but no step reached it; too short: it has too few words to be searched for; clean: none of these
Status = Literal["read", "unknown", "unread", "too_short", "clean"]
STATUSES: tuple[Status, ...] = ("read", "unknown", "unread", "too_short", "clean")
# how a question lies in a document: word for word as written; the same words with other blanks, marks or
# capitals; a part of its words; the answer without the question
Form = Literal["verbatim", "words", "near", "answer"]


class AuditLesson(Spec):
    """Steps of a student in which it was taught, and the teacher's steps at the end; None = as it ended."""

    student: str
    first: int
    last: int
    teacher_end: int | None


class AuditRoute(Spec):
    """One way by which text came to the model (infra/report/ancestry.py)."""

    kind: str = Field(description="own, init, teacher, tokenizer, written, imitated, adopted, unreadable")
    words: str = Field(description="the way in words, from the model on")
    is_tokenizer: bool = Field(default=False, description="only a tokenizer was learned from the text")
    text: str = Field(default="", description="input: the artifact with text; '' = it cannot be seen")
    tokens: str = Field(default="", description="input: the tokens that were read of a corpus")
    source: str = Field(default="", description="key of the training's streams, such as tokens.main")
    plan: DataPlan | None = Field(default=None, description="what the training read; None = no training did")
    inputs: dict[str, str] = Field(default={}, description="inputs by the plan's keys")
    start: int = 0
    end: int = Field(default=0, description="the steps that count: start <= step < end")
    after: int = Field(
        default=0, description="the training went on to this step; those after `end` do not count"
    )
    left_out: tuple[int, ...] = ()
    all_left_out: tuple[int, ...] = ()
    consumed: Json = Field(default=None, description="samples that the model's record counts up to `after`")
    is_recorded: bool = Field(default=False, description="the plan was recorded, not derived from identity")
    lessons: tuple[AuditLesson, ...] = ()
    unknown: str = Field(default="", description="what cannot be seen; '' = nothing")


class AuditConfig(Spec):
    """The sets are inputs `set.<name>`, texts, tokens and indices inputs by their fingerprints."""

    sets: tuple[str, ...]
    routes: tuple[AuditRoute, ...]
    indices: dict[str, str] = Field(default={}, description="input: index of words, by input of its corpus")


class RouteReading(TypedDict):
    """When a route's training read the place. times: rows that hold something of it, None = unknown; whole:
    passes that held all of it; first, last: steps; after: reads after the last lesson, which do not count. A
    tokenizer that was learned from the text does not count either: it keeps no sentences.
    """

    route: int
    times: int | None
    whole: int
    first: int | None
    last: int | None
    after: int
    unknown: NotRequired[str]


class TextOverlap(TypedDict):
    """A place in a document with text of a question. share: of the question's words."""

    form: Form
    share: float
    artifact: str
    kind: str
    document: str
    split: str
    begin: int
    end: int
    excerpt: str
    readings: list[RouteReading]


class AuditedQuestion(TypedDict):
    id: str
    status: Status
    overlaps: list[TextOverlap]
    left_out: NotRequired[int]  # further overlaps that are not listed


class AuditedSet(TypedDict):
    """Questions by status; `answers_too_short`: answers that are not searched for alone. `questions` lists
    all but the clean ones.
    """

    name: str
    base: str  # without the number of shots, as in exams
    fingerprint: str
    counts: dict[Status, int]
    answers_too_short: int
    questions: list[AuditedQuestion]


class AuditResult(TypedDict):
    """audit.json. `routes`: as in AuditRoute, in words; `unseen`: what could not be seen."""

    model: str
    fingerprint: str
    sets: list[AuditedSet]
    routes: list[str]
    unseen: list[str]


def exit_code(result: AuditResult) -> int:
    """3 if a question was read, else 4 if one may have been, else 0."""
    counts: dict[Status, int] = {}
    for each in result["sets"]:
        for status, number in each["counts"].items():
            counts[status] = counts.get(status, 0) + number
    if counts.get("read"):
        return OVERLAP
    return UNKNOWN if counts.get("unknown") or counts.get("too_short") or result["unseen"] else CLEAN
