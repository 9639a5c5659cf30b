"""A model's answers to the questions of an evaluation set, and their metrics. Torch-free.

An artifact of kind `exam` has two files: exam.json, an ExamResult, and answers.jsonl, an AnswerLine for each
question, in the set's order.
"""

from typing import Literal, NotRequired, TypedDict

from pydantic import Field

from atelier.engine.config.base import Count, JsonObject, Spec
from atelier.engine.config.evaluation_set import QuestionKind
from atelier.engine.config.parallel import InferenceLayout

KIND = "exam"
EXAM, ANSWERS = "exam.json", "answers.jsonl"
PRIOR = "Answer:"  # context of an option alone (GPT-3, 2005.14165, section 2.4)


class AnswerLine(TypedDict):
    """A model's answer to one question.

    nats, tokens, bytes: of each option (of a text: one entry), -ln p summed over its tokens. alone: nats of
    each option after PRIOR. best: whether each of the option's tokens is the most likely one. said: the
    generated answer; targets: the right ones. right: of `choice` whether the most likely option is the right
    one, of `cloze` whether `best`, of `free` whether the answer is exact. words: of a text, between
    blanks. length: tokens of the longest row. cut: tokens of the context that had no room. slice, item,
    values: as the question has them.
    """

    id: str
    group: str
    nats: NotRequired[list[float]]
    tokens: NotRequired[list[int]]
    bytes: NotRequired[list[int]]
    alone: NotRequired[list[float]]
    best: NotRequired[list[bool]]
    answer: NotRequired[int]
    said: NotRequired[str]
    targets: NotRequired[list[str]]
    right: NotRequired[float]
    words: NotRequired[int]
    slice: NotRequired[str]
    item: NotRequired[str]
    values: NotRequired[list[float]]
    length: int
    cut: int


class Examine(InferenceLayout):
    """How models are examined."""

    sequence: Count | Literal["auto"] = Field(
        default="auto",
        description="context in tokens; auto = the learned positions; without them contexts are not cut, and"
        " texts are read in windows as long as in training",
    )
    overlap: float = Field(
        default=0.5,
        ge=0,
        lt=1,
        description="texts longer than the context: share that windows have in common",
    )
    prior: bool = Field(
        default=False,
        description="also normalise by the likelihood of the options alone (one more pass each)",
    )
    precision: Literal["float32", "bf16"] = Field(default="float32", description="of weights and arithmetic")
    batch: Count | Literal["auto"] = Field(
        default="auto",
        description="rows computed together; auto = by their tokens",
        json_schema_extra={"layout": True},
    )
    memory_gb: float = Field(
        default=0.0,
        ge=0,
        description="limit of model weights in memory, GB; 0 = no limit. Scores do not change",
        json_schema_extra={"layout": True},
    )


class CheckpointAddress(Spec):
    """A checkpoint of a trajectory, in whatever layout it was saved, and the network that it is of."""

    url: str
    trajectory: str = Field(description="fingerprint")
    step: int = Field(ge=0)
    model: JsonObject = Field(description="the model's arguments, as in config.json")


class ExamineConfig(Spec):
    """Config of the tasks examine and examine_checkpoint. The sets are inputs `set.<key>`, the exams outputs
    `<key>`.
    """

    examine: Examine
    checkpoint: CheckpointAddress | None = Field(
        default=None, description="whose weights are read, with the input `tokenizer`; None = input `model`"
    )
    trained: int | None = Field(default=None, description="tokens of the rows that the model was trained on")
    threads: int = Field(default=1, ge=1, description="CPU threads of each rank")


class Interval(TypedDict):
    value: float
    low: float | None
    high: float | None


class SliceResult(TypedDict):
    slice: str
    value: float
    low: float | None
    high: float | None


class Spread(TypedDict):
    """The largest value of a slice less the least, and what chance gives where slices do not matter."""

    value: float
    by_chance: float


class ExamParts(TypedDict):
    """`slices`: the main metric of each part of the set, in its order. `leanings`: of each part, the options
    that it makes likelier than others do.
    """

    slices: NotRequired[list[SliceResult]]
    spread: NotRequired[Spread]
    leanings: NotRequired[dict[str, list[str]]]


class ExamResult(ExamParts):
    """exam.json. `main`: the main one of `metrics`, '' if there is none. `cut`: questions whose context was
    cut. `rivals`: the metrics of the set's answers without a model, by their names.
    """

    set: str
    kind: QuestionKind
    shots: int
    seed: int
    questions: int
    groups: int
    cut: int
    main: NotRequired[str]
    metrics: dict[str, Interval]
    rivals: NotRequired[dict[str, dict[str, Interval]]]
