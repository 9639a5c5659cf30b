"""The metrics of exams: of answers, of differences between two models, and of the parts (slices) of a set.
Torch-free.
"""

import math
import random
import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev

from atelier.engine.config.evaluation_set import QuestionKind, QuestionLine
from atelier.engine.config.exam import AnswerLine, ExamParts, SliceResult, Spread
from atelier.engine.config.intervals import Bounded, mean, ratio, share, t95

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
SHOWN = 3  # options that a slice leans to
SHUFFLES = 200
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
    if metric == "bits_per_byte" and "values" not in line:
        return nats[answer] / math.log(2), float(line["bytes"][answer])
    if "values" in line:
        return None
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


def parts_of(
    lines: Sequence[AnswerLine], kind: QuestionKind, main: str, questions: Sequence[QuestionLine]
) -> ExamParts:
    """What exam.json tells of the parts of a set; nothing without parts."""
    found = ExamParts()
    if slices := by_slice(lines, kind, main):
        found["slices"] = [
            SliceResult(slice=name, value=each.value, low=each.low, high=each.high)
            for name, each in slices.items()
        ]
    if (apart := spread(lines, main)) is not None:
        found["spread"] = apart
    if kind == "valued":
        found["leanings"] = leanings(lines, {each["id"]: each["options"] for each in questions})
    return found


def by_slice(lines: Sequence[AnswerLine], kind: QuestionKind, metric: str) -> dict[str, Bounded]:
    """The metric of each slice, in the set's order; {} for a set without slices."""
    parts: dict[str, list[AnswerLine]] = {}
    for line in lines:
        if name := line.get("slice"):
            parts.setdefault(name, []).append(line)
    found = {name: estimates(part, kind) for name, part in parts.items()}
    return {name: each[metric] for name, each in found.items() if metric in each}


def items(lines: Sequence[AnswerLine]) -> list[dict[str, AnswerLine]]:
    """The items that were asked once in every slice, with their lines by slice."""
    slices = {line["slice"] for line in lines if "slice" in line}
    found: dict[str, list[AnswerLine]] = {}
    for line in lines:
        if "item" in line and "slice" in line:
            found.setdefault(line["item"], []).append(line)
    by_name = [{line.get("slice", ""): line for line in each} for each in found.values()]
    whole = zip(found.values(), by_name, strict=True)
    return [each for every, each in whole if len(every) == len(each) == len(slices) > 1]


def of_variants(lines: Sequence[AnswerLine]) -> dict[str, Bounded]:
    """`all_right`: the share of items with each variant right. `same_answer`: of those whose variants have
    one right answer, the share in which all choose one option. {} without items.
    """
    found: dict[str, list[float]] = {"all_right": [], "same_answer": []}
    for item in items(lines):
        nats = [line.get("nats", []) for line in item.values()]
        if any("right" not in line for line in item.values()):
            continue
        found["all_right"].append(float(all(line.get("right") for line in item.values())))
        if len({line.get("answer") for line in item.values()}) == 1 and all(len(each) > 1 for each in nats):
            found["same_answer"].append(float(len(set(map(least, nats))) == 1))
    named = {name: [str(number) for number in range(len(each))] for name, each in found.items()}
    return {name: share(each, named[name]) for name, each in found.items() if each}


def spread(lines: Sequence[AnswerLine], metric: str) -> Spread | None:
    """How far the means of the slices lie apart, over items; and the mean of that where each item's values
    are shuffled among the slices. None without items, and for metrics that are no means.
    """
    rows: list[list[float]] = []
    for item in items(lines) if metric not in (*LOGARITHMS, "bits_per_byte") else ():
        parts = [value_of(item[name], metric) for name in sorted(item)]
        if any(part is None for part in parts):
            return None
        rows.append([part[0] for part in parts if part is not None])
    if not rows:
        return None
    dice = random.Random(0)
    shuffled = [_apart(dice.sample(row, len(row)) for row in rows) for _ in range(SHUFFLES)]
    return Spread(value=_apart(rows), by_chance=fmean(shuffled))


def _apart(rows: Iterable[Sequence[float]]) -> float:
    means = [fmean(column) for column in zip(*rows, strict=True)]
    return max(means) - min(means)


def leanings(lines: Sequence[AnswerLine], options: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The options that each slice makes likelier than the slices do on average, by the mean of ln p, where
    that is beyond its 95 % interval; {} unless all questions have the same options, more than two. `options`:
    of each question, by its id.
    """
    listed = {tuple(each) for each in options.values()}
    rows: dict[str, list[list[float]]] = {}
    for line in lines:
        if (name := line.get("slice")) and (nats := line.get("nats")):
            every = math.log(math.fsum(math.exp(min(nats) - each) for each in nats)) - min(nats)
            rows.setdefault(name, []).append([-each - every for each in nats])
    if len(rows) < 2 or len(listed) != 1 or len(names := next(iter(listed))) < 3:
        return {}
    found: dict[str, list[str]] = {name: [] for name in rows}
    columns = {name: list(zip(*each, strict=True)) for name, each in rows.items()}
    usual = [fmean(fmean(each[place]) for each in columns.values()) for place in range(len(names))]
    for name, each in columns.items():
        leans = [fmean(column) - mean for column, mean in zip(each, usual, strict=True)]
        for place in sorted(range(len(names)), key=lambda place: -leans[place]):
            count = len(each[place])
            if count > 1 and leans[place] > t95(count - 1) * stdev(each[place]) / math.sqrt(count):
                found[name].append(names[place].strip())
    return {name: each[:SHOWN] for name, each in found.items()}
