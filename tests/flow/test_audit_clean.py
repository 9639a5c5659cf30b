"""Audits of random DAGs invent nothing, and find a question that is put into one of their texts."""

from pathlib import Path

import pytest

from tests.flow.dags import RandomDag
from tests.marks import quick


@pytest.mark.parametrize("seed", quick(range(50), 6))
def test_audits_of_a_clean_dag_find_nothing_and_call_only_what_is_unseen_unknown(
    tmp_path: Path, seed: int
) -> None:
    count = 0
    for made, result in RandomDag(tmp_path, seed).audits():
        [found] = result["sets"]
        assert [each["overlaps"] for each in found["questions"] if each["overlaps"]] == []
        status = "unknown" if made.is_unseen else "clean"
        assert {name: n for name, n in found["counts"].items() if n} == {status: 8}, result["unseen"]
        assert bool(result["unseen"]) == made.is_unseen
        count += 1
    assert count


@pytest.mark.parametrize("seed", quick(range(50), 3))
def test_a_question_in_a_text_of_the_same_dag_is_found_for_each_model_that_it_led_to(
    tmp_path: Path, seed: int
) -> None:
    models = RandomDag(tmp_path / "clean", seed).models
    reached = sorted({text for made in models if not made.is_gone for text in made.texts})
    planted = reached[seed % len(reached)]
    caught = 0
    for made, result in RandomDag(tmp_path / "twin", seed, planted=planted).audits():
        [found] = result["sets"]
        overlaps = {each["id"] for each in found["questions"] if each["overlaps"]}
        assert overlaps == ({"q0"} if planted in made.texts else set())
        caught += bool(overlaps)
    assert caught
