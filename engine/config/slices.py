"""What the parts (slices) of an evaluation set tell beside the whole: the main metric of each, and whether
questions that are asked in several ways get one answer. Torch-free.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from atelier.engine.config.evaluation_set import QuestionKind
from atelier.engine.config.exam import AnswerLine, Interval, estimates, least
from atelier.engine.config.intervals import Bounded, share

SHOWN = 3  # options that a slice leans to


def by_slice(lines: Sequence[AnswerLine], kind: QuestionKind, metric: str) -> dict[str, Bounded]:
    """The metric of each slice, in the set's order; {} for a set without slices."""
    parts: dict[str, list[AnswerLine]] = {}
    for line in lines:
        if name := line.get("slice"):
            parts.setdefault(name, []).append(line)
    found = {name: estimates(part, kind) for name, part in parts.items()}
    return {name: each[metric] for name, each in found.items() if metric in each}


def of_variants(lines: Sequence[AnswerLine]) -> dict[str, Bounded]:
    """Of groups with one question in every slice: `all_right`, the share with each variant right, and
    `same_answer`, the share in which all variants choose one option. {} without such groups.
    """
    slices = {line["slice"] for line in lines if "slice" in line}
    groups: dict[str, list[AnswerLine]] = {}
    for line in lines:
        if "slice" in line and "right" in line and "nats" in line:
            groups.setdefault(line["group"], []).append(line)
    whole = [
        group
        for group in groups.values()
        if len(group) == len(slices) > 1 and {line.get("slice") for line in group} == slices
    ]
    if not whole:
        return {}
    names = [str(number) for number in range(len(whole))]
    right = [float(all(line.get("right") for line in group)) for group in whole]
    same = [float(len({least(line.get("nats", [0.0])) for line in group}) == 1) for group in whole]
    return {"all_right": share(right, names), "same_answer": share(same, names)}


def spread(slices: Mapping[str, Interval]) -> float:
    """The largest value less the least."""
    values = [each["value"] for each in slices.values()]
    return max(values) - min(values)


def leanings(lines: Sequence[AnswerLine], options: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The options that each slice makes likelier than the others do, by ln p less its mean over slices; {}
    unless all questions have the same options, more than two. `options`: of each question, by its id.
    """
    slices: dict[str, list[list[float]]] = {}
    for line in lines:
        if (name := line.get("slice")) and (nats := line.get("nats")):
            every = math.log(math.fsum(math.exp(min(nats) - each) for each in nats)) - min(nats)
            slices.setdefault(name, []).append([-each - every for each in nats])
    listed = {tuple(each) for each in options.values()}
    if len(slices) < 2 or len(listed) != 1 or len(names := next(iter(listed))) < 3:
        return {}
    means = {name: [fmean(column) for column in zip(*rows, strict=True)] for name, rows in slices.items()}
    usual = [fmean(column) for column in zip(*means.values(), strict=True)]
    found: dict[str, list[str]] = {}
    for name, row in means.items():
        leans = [value - mean for value, mean in zip(row, usual, strict=True)]
        order = sorted(range(len(names)), key=lambda place: -leans[place])
        found[name] = [names[place].strip() for place in order[:SHOWN]]
    return found
