"""Evaluation sets: what they hold, and how they are made. Torch-free.

An artifact of kind `evaluation` has three files:

  set.json          an EvaluationSet
  questions.jsonl   a QuestionLine for each question, in the order of its source
  shots.jsonl       a ShotLine for each solved example that a question names

A model is asked `description` + the texts of the question's shots, in order + `context`. Nothing is added:
the texts hold their own delimiters. Where each option has a context of its own (`contexts`, as in partial
scoring of WinoGrande), that one takes the place of `context`, and all options are the same text. What is
asked, searched for in training text and audited are these bytes.
"""

from typing import Literal, NotRequired, TypedDict

from pydantic import Field

from atelier.engine.config.base import Count, JsonObject, Spec
from atelier.engine.config.direction import Direction

KIND = "evaluation"
SET, QUESTIONS, SHOTS = "set.json", "questions.jsonl", "shots.jsonl"
# choice: the most likely option; cloze: one target, right if each of its tokens is the most likely one;
# free: a generated answer; text: the likelihood of a whole text (`targets`, without a context);
# valued: options with a value each, of which none is right
QuestionKind = Literal["choice", "cloze", "free", "text", "valued"]


class QuestionLine(TypedDict):
    """One question as it is asked.

    options: continuations of the context with their leading blank (of `choice`; of `cloze` the one target).
    answer: index of the right option; 0 for other kinds. targets: right answers of `free`, or the text.
    group: questions with the same text to read, such as a passage; they are not independent.
    parts: the question's own words, without the template's: pieces of the context, for searches. answer_text:
    the right answer in its own words. contexts: one for each option where they differ; `context` is "" then.
    slice: a part of the set with results of its own. item: questions of one item are one question asked in
    several ways. values: of each option (of `valued`). rivals: answers without a model, by their names.
    """

    id: str
    context: str
    options: list[str]
    answer: int
    targets: list[str]
    shots: list[int]
    group: str
    parts: list[str]
    answer_text: str
    contexts: NotRequired[list[str]]
    slice: NotRequired[str]
    item: NotRequired[str]
    values: NotRequired[list[float]]
    rivals: NotRequired[dict[str, str]]


class ShotLine(TypedDict):
    """A solved example: its text with the delimiter behind it."""

    id: str
    text: str


class Metric(Spec):
    """The name is lm-eval's."""

    name: str
    direction: Direction
    ignore_case: bool = Field(default=False, description="exact_match: capitals do not count")
    ignore_punctuation: bool = Field(
        default=False, description="exact_match: ASCII punctuation does not count"
    )


class EvaluationSet(Spec):
    name: str
    kind: QuestionKind
    description: str = Field(default="", description="text before the shots and the context")
    shots: int = Field(default=0, ge=0, description="solved examples before each question")
    seed: int = Field(default=0, description="of the draw of the shots")
    until: tuple[str, ...] = Field(default=(), description="free: an answer ends before the first of these")
    max_tokens: int = Field(default=64, ge=1, description="free: most tokens of an answer")
    metrics: tuple[Metric, ...] = Field(description="that are reported; the first is the main one")
    template: JsonObject = Field(default={}, description="what the source said, for the record")


class Pose(Spec):
    """How evaluation sets are made from their sources."""

    shots: tuple[int, ...] = Field(
        default=(), description="numbers of solved examples, a set for each; none = as each source says"
    )
    draws: Count = Field(default=1, description="draws of the solved examples, a set for each")
    seed: int = Field(default=0, description="of the first draw; the next has the next number")
    max_questions: int = Field(default=0, ge=0, description="first questions of each source; 0 = all")
    data: str = Field(default="evals", description="folder of the data files that sources name")
    allow: tuple[str, ...] = Field(
        default=(),
        description="sources that may run their own Python code and name files elsewhere",
    )
