"""Parts of sets, beside plain counts."""

import math
import random
from typing import Any, cast

import pytest

from atelier.engine.config.exam import AnswerLine
from atelier.engine.config.exam_metrics import by_slice, estimates, leanings, of_variants, spread


def line(group: str, part: str, nats: list[float], **more: Any) -> AnswerLine:
    right = float(min(range(len(nats)), key=nats.__getitem__) == 0)
    about = {"id": f"{group}.{part}", "group": group, "item": group, "slice": part, "right": right}
    sizes = {"tokens": [1] * len(nats), "bytes": [1] * len(nats)}
    return cast(AnswerLine, {**about, **sizes, "nats": nats, "answer": 0, **more})


@pytest.mark.parametrize("seed", range(5))
def test_variants_count_groups_that_are_whole(seed: int) -> None:
    rng, lines, right, same = random.Random(seed), list[AnswerLine](), 0, 0
    for group in range(30):
        asked = ["a", "b", "c"] if rng.random() < 0.8 else ["a", "b"]
        chosen = [rng.randrange(2) for _ in asked]
        lines += [
            line(str(group), part, [float(pick), 0.5]) for part, pick in zip(asked, chosen, strict=True)
        ]
        if len(asked) == 3:
            right, same = right + (sum(chosen) == 0), same + (len(set(chosen)) == 1)
    whole = sum(sum(each["group"] == str(group) for each in lines) == 3 for group in range(30))
    found = of_variants(lines)
    assert (found["all_right"].value, found["same_answer"].value) == (right / whole, same / whole)
    rng.shuffle(lines)
    assert of_variants(lines) == found
    parts = by_slice(lines, "choice", "accuracy")
    rights = [each.get("right", 0.0) for each in lines if each.get("slice") == "c"]
    assert parts["c"].value == sum(rights) / len(rights)


def test_sets_without_parts_have_none() -> None:
    lines = [cast(AnswerLine, {k: v for k, v in line("g", "a", [0.0, 1.0]).items() if k != "slice"})]
    assert of_variants(lines) == {} == by_slice(lines, "choice", "accuracy") == leanings(lines, {})
    assert spread(lines, "accuracy") is None


def test_two_questions_of_one_part_are_no_variants() -> None:
    lines = [line("g", "a", [0.0, 1.0]), line("g", "a", [0.0, 1.0]), line("h", "b", [0.0, 1.0])]
    assert of_variants(lines) == {}


def test_values_are_weighted_by_the_options_probability() -> None:
    lines = [
        line(str(n), "a", [-math.log(p), -math.log(1 - p)], values=[0, 1]) for n, p in enumerate((0.2, 0.5))
    ]
    found = estimates(lines, "valued")
    assert found["expected"].value == pytest.approx((0.8 + 0.5) / 2)
    assert found["log_ratio"].value == pytest.approx(math.log(4) / 2)  # ln P(second) - ln P(first)


def test_one_answer_is_compared_only_where_one_is_right() -> None:
    first = [line("g", "a", [0.0, 1.0]), line("g", "b", [0.0, 1.0], answer=1, right=0.0)]
    assert [*of_variants(first)] == ["all_right"]
    cloze = [line("g", "a", [1.0]), line("g", "b", [2.0])]
    assert [*of_variants(cloze)] == ["all_right"]


def test_a_spread_stands_beside_that_of_chance() -> None:
    rng = random.Random(1)
    same = [line(str(n), part, [rng.random(), 0.5]) for n in range(80) for part in "abcdef"]
    found = spread(same, "accuracy")
    assert found is not None and found["by_chance"] > 0.05
    assert 0.3 < found["value"] / found["by_chance"] < 2
    one = [line(str(n), part, [0.0 if part == "a" else 1.0, 0.5]) for n in range(80) for part in "abc"]
    found = spread(one, "accuracy")
    assert found is not None and found["value"] == 1.0 and found["by_chance"] < 0.2
    assert spread(same, "bits_per_byte") is None is spread(same, "perplexity")


def leaning(likes: dict[str, list[float]]) -> tuple[list[AnswerLine], dict[str, list[str]]]:
    rng = random.Random(2)
    lines = [
        line(str(n), part, [each + 0.1 * rng.random() for each in nats], values=[0] * 4)
        for n in range(8)
        for part, nats in likes.items()
    ]
    return lines, {each["id"]: [" kind", " strong", " pretty", " old"] for each in lines}


def test_a_part_leans_to_the_options_that_it_makes_likelier_than_others() -> None:
    lines, options = leaning({"he": [1.0, 2.0, 3.0, 4.0], "she": [1.0, 3.0, 2.0, 4.0]})
    assert leanings(lines, options) == {"he": ["strong"], "she": ["pretty"]}
    options["2.she"] = [" other", " strong", " pretty", " old"]
    assert leanings(lines, options) == {}
    assert leanings(*leaning({"he": [1.0, 2.0, 3.0, 4.0], "she": [1.0, 2.0, 3.0, 4.0]})) == {
        "he": [],
        "she": [],
    }
