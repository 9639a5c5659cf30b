"""chrF and BLEU of written answers, with intervals over groups."""

import random

import pytest

from atelier.engine.config.exam import AnswerLine
from atelier.engine.inference.questions import text_metrics

pytest.importorskip("sacrebleu")
WORDS = ["sea", "wave", "boat", "sail", "rope", "mast", "tide", "deck", "wind", "port", "bow", "keel"]


def drawn(seed: int, number: int = 24, copies: int = 1) -> list[AnswerLine]:
    """Answers with some words of their target; each `copies` times in one group."""
    rng = random.Random(seed)
    found: list[AnswerLine] = []
    for group in range(number):
        target = rng.choices(WORDS, k=8)
        said = [word if rng.random() < 0.7 else rng.choice(WORDS) for word in target]
        for copy in range(copies):
            line = AnswerLine(id=f"{group}.{copy}", group=str(group), length=1, cut=0)
            line["said"], line["targets"] = " ".join(said), [" ".join(target)]
            found.append(line)
    return found


def test_equal_answers_of_a_group_make_nothing_surer() -> None:
    lines = drawn(1, 20, copies=3)
    alone = [line | {"group": line["id"]} for line in lines]
    once, often, narrow = (text_metrics(each) for each in (drawn(1, 20), lines, alone))  # pyright: ignore[reportArgumentType]
    for metric in ("chrf", "bleu"):
        assert often[metric] == pytest.approx(once[metric], abs=1e-6)
        ends = narrow[metric].high, once[metric].high
        assert None not in ends and ends[0] - narrow[metric].value < 0.8 * (ends[1] - once[metric].value)  # pyright: ignore[reportOperatorIssue, reportOptionalOperand]


def test_an_interval_holds_most_values_of_other_draws() -> None:
    values = [text_metrics(drawn(seed))["chrf"] for seed in range(6)]
    middle = sum(each.value for each in values) / len(values)
    inside = sum((each.low or 0) < middle < (each.high or 0) for each in values)
    assert inside >= 4
    spread = max(each.value for each in values) - min(each.value for each in values)
    assert all(each.low is not None and each.high is not None for each in values)
    assert all((each.high or 0) - (each.low or 0) < 3 * spread for each in values)


def test_one_group_has_no_interval_and_right_answers_have_all() -> None:
    one = text_metrics([line | {"group": "g"} for line in drawn(2)])["bleu"]  # pyright: ignore[reportArgumentType]
    assert one.low is None
    exact = [line | {"said": line["targets"][0]} for line in drawn(3)]  # pyright: ignore[reportTypedDictNotRequiredAccess]
    found = text_metrics(exact)  # pyright: ignore[reportArgumentType]
    assert found["bleu"] == pytest.approx((100, 100, 100)) and found["chrf"] == pytest.approx((100, 100, 100))
