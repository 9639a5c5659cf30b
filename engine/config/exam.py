"""A model's answers to the questions of an evaluation set, and their metrics. Torch-free.

An artifact of kind `exam` has two files: exam.json, an ExamResult, and answers.jsonl, an AnswerLine for each
question, in the set's order.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Literal, NotRequired, TypedDict

from pydantic import Field

from atelier.engine.config.base import Count, JsonObject, Spec
from atelier.engine.config.evaluation_set import QuestionKind
from atelier.engine.config.intervals import Bounded, mean, ratio, share

KIND = "exam"
EXAM, ANSWERS = "exam.json", "answers.jsonl"
PRIOR = "Answer:"  # context of an option alone (GPT-3, 2005.14165, section 2.4)


class AnswerLine(TypedDict):
    """A model's answer to one question.

    nats, tokens, bytes: of each option (of a text: one entry), -ln p summed over its tokens. alone: nats of
    each option after PRIOR. best: whether each of the option's tokens is the most likely one. said: the
    generated answer; targets: the right ones. right: of `choice` whether the most likely option is the right
    one, of `cloze` whether `best`, of `free` whether the answer is exact. words: of a text, between
    blanks. length: tokens of the longest row. cut: tokens of the context that had no room. slice, values: as
    the question has them.
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
    values: NotRequired[list[float]]
    length: int
    cut: int


class Examine(Spec):
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
    replicate: Count = Field(
        default=1,
        description="copies of the model, which share the questions",
        json_schema_extra={"layout": True},
    )
    tensor: Count = Field(
        default=1, description="ranks that split every matrix of a copy", json_schema_extra={"layout": True}
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


class ExamResult(TypedDict):
    """exam.json. `metrics`: by name; the first is the main one. `cut`: questions whose context was cut.
    `slices`: the main metric of each part of the set. `leanings`: engine/config/slices.py.
    """

    set: str
    kind: QuestionKind
    shots: int
    seed: int
    questions: int
    groups: int
    cut: int
    metrics: dict[str, Interval]
    slices: NotRequired[dict[str, Interval]]
    leanings: NotRequired[dict[str, list[str]]]


# by kind of question, the main metric first; their directions: engine/config/direction.py
METRICS: dict[QuestionKind, tuple[str, ...]] = {
    "choice": ("accuracy", "accuracy_tokens", "accuracy_bytes", "accuracy_prior", "bits_per_byte"),
    "cloze": ("accuracy", "perplexity", "bits_per_byte"),
    "free": ("exact_match", "f1", "chrf", "bleu"),
    "text": ("bits_per_byte", "byte_perplexity", "word_perplexity"),
    "valued": ("log_ratio", "expected"),
}


# lm-eval's names; the others are the same. acc_norm is by characters, which are bytes in ASCII
OF_LM_EVAL = {"acc": "accuracy", "acc_norm": "accuracy_bytes", "acc_bytes": "accuracy_bytes"}
MEANS = ("f1", "expected", "log_ratio")  # of numbers; other metrics are shares of 0s and 1s
LOGARITHMS = ("perplexity", "byte_perplexity", "word_perplexity")  # whose logarithm is a mean


def least(values: Sequence[float]) -> int:
    """The place of the least value, the first of equals."""
    return min(range(len(values)), key=values.__getitem__)


def value_of(line: AnswerLine, metric: str) -> tuple[float, float] | None:
    """A question's part of a metric: what is summed above and below the line; None if it has none."""
    if metric == "f1" and "said" in line and "targets" in line:
        return max(f1(line["said"], target) for target in line["targets"]), 1.0
    if metric in ("accuracy", "exact_match") and "right" in line:
        return line["right"], 1.0
    if "nats" not in line or "tokens" not in line or "bytes" not in line:
        return None
    if metric == "expected":
        return (_expected(line["nats"], line["values"]), 1.0) if "values" in line else None
    if metric == "log_ratio":
        return (line["nats"][0] - line["nats"][1], 1.0) if len(line["nats"]) == 2 else None
    nats, answer = line["nats"], line.get("answer", 0)
    if metric in LOGARITHMS:
        units = {
            "perplexity": 1,
            "byte_perplexity": line["bytes"][answer],
            "word_perplexity": line.get("words", 0),
        }
        return (nats[answer], float(units[metric])) if units[metric] else None
    if metric == "bits_per_byte":
        return nats[answer] / math.log(2), float(line["bytes"][answer])
    if metric == "accuracy_prior":
        weights = [n - own for n, own in zip(nats, line.get("alone", []), strict=False)]
    else:
        sizes = line["tokens"] if metric == "accuracy_tokens" else line["bytes"]
        weights = [n / size for n, size in zip(nats, sizes, strict=True)]
    return (float(least(weights) == answer), 1.0) if weights else None


def estimates(lines: Sequence[AnswerLine], kind: QuestionKind) -> dict[str, Bounded]:
    """The metrics of these answers with their intervals; those that need other libraries are left out."""
    found: dict[str, Bounded] = {}
    for metric in METRICS[kind]:
        parts = [value_of(line, metric) for line in lines]
        some = [part for part in parts if part is not None]
        if not lines or len(some) < len(lines):
            continue
        groups = [line["group"] for line in lines]
        tops, bottoms = [top for top, _ in some], [bottom for _, bottom in some]
        if metric == "bits_per_byte":
            found[metric] = ratio(tops, bottoms, groups)
        elif metric in LOGARITHMS:
            value, low, high = ratio(tops, bottoms, groups)
            found[metric] = Bounded(_exp(value) or 0.0, _exp(low), _exp(high))
        else:
            found[metric] = mean(tops, groups) if metric in MEANS else share(tops, groups)
    return found


def _expected(nats: Sequence[float], values: Sequence[float]) -> float:
    """The mean of the options' values, each with its probability among the options."""
    best = min(nats)
    weights = [math.exp(best - each) for each in nats]
    return math.fsum(w * v for w, v in zip(weights, values, strict=True)) / math.fsum(weights)


def _exp(value: float | None) -> float | None:
    return None if value is None else math.exp(min(value, 700.0))


def difference(ones: Sequence[AnswerLine], others: Sequence[AnswerLine], metric: str) -> Bounded | None:
    """The mean difference of a metric between two models on the questions that both answered, paired, with
    its interval over groups. None if there are none. Bits per byte: the difference of the two ratios, whose
    bytes are the same.
    """
    by_id = {line["id"]: line for line in others}
    both = [(line, by_id[line["id"]]) for line in ones if line["id"] in by_id]
    parts = [(value_of(one, metric), value_of(other, metric), one["group"]) for one, other in both]
    found = [(one, other, group) for one, other, group in parts if one is not None and other is not None]
    if not found:
        return None
    tops = [one[0] - other[0] for one, other, _ in found]
    return ratio(tops, [one[1] for one, _, _ in found], [group for *_, group in found])


ARTICLES = re.compile(r"\b(a|an|the)\b")


def plain(text: str) -> str:
    """A text as SQuAD's evaluation compares it: lower case, no punctuation, no articles, single spaces."""
    text = "".join(each for each in text.lower() if each not in string.punctuation)
    return " ".join(ARTICLES.sub(" ", text).split())


def is_exact(said: str, target: str, *, ignore_case: bool, ignore_punctuation: bool) -> bool:
    """Whether an answer is a target, apart from blanks around it, and capitals and punctuation if asked."""
    texts = [said.strip(), target.strip()]
    if ignore_case:
        texts = [text.lower() for text in texts]
    if ignore_punctuation:
        texts = ["".join(each for each in text if each not in string.punctuation) for text in texts]
    return texts[0] == texts[1]


def f1(said: str, target: str) -> float:
    """The harmonic mean of precision and recall of words (SQuAD, 1606.05250, section 6.1)."""
    ours, theirs = plain(said).split(), plain(target).split()
    if not ours or not theirs:
        return float(ours == theirs)
    shared = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * shared / (len(ours) + len(theirs))


def chance(numbers: Sequence[int]) -> float:
    """The accuracy of guessing among each question's number of options."""
    return math.fsum(1 / number for number in numbers) / len(numbers)
