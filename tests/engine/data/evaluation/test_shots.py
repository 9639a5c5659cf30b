"""Solved examples are drawn by the seed and the question's number, and are never the question itself."""

from pathlib import Path
from typing import Any

import pytest

from atelier.engine.config.error import DataError
from tests.engine.data.evaluation.posing import ROW, ROWS, Posed, posed, task_of_rows

POOL = [{**ROW, "question": f"Which rope is hauled at hour {number}?"} for number in range(20)]


def texts(made: Posed) -> list[list[str]]:
    return [[made.shots[place]["text"] for place in one["shots"]] for one in made.questions]


def test_draws_depend_on_the_seed_and_the_question_and_on_nothing_else(tmp_path: Path) -> None:
    task = task_of_rows(tmp_path, ROWS, POOL)
    first, again, other = (texts(posed(task, shots=5, seed=seed)) for seed in (0, 0, 1))
    assert first == again != other
    assert texts(posed(task, shots=5, most=2)) == first[:2]
    assert texts(posed(task, shots=3)) == [each[:3] for each in first]
    assert len({tuple(each) for each in first}) == len(ROWS)
    assert all(len(set(each)) == 5 for each in first)


def test_first_n_takes_the_first_ones_in_order(tmp_path: Path) -> None:
    made = posed(task_of_rows(tmp_path, ROWS, POOL, fewshot_config={"sampler": "first_n"}), shots=3)
    assert [one["id"] for one in made.shots] == ["0", "1", "2"]
    assert all(one["shots"] == [0, 1, 2] for one in made.questions)


@pytest.mark.parametrize("sampler", ["default", "first_n"])
def test_a_question_is_never_its_own_example(tmp_path: Path, sampler: str) -> None:
    task = task_of_rows(tmp_path, ROWS, training_split=None, fewshot_config={"sampler": sampler})
    made = posed(task, shots=len(ROWS) - 1)
    for one, shots in zip(made.questions, texts(made), strict=True):
        assert len(set(shots)) == len(ROWS) - 1
        assert not any(shot.startswith(one["context"]) for shot in shots)


def test_listed_samples_are_the_pool(tmp_path: Path) -> None:
    few: dict[str, Any] = {"sampler": "first_n", "samples": POOL[3:5]}
    made = posed(task_of_rows(tmp_path, ROWS, POOL, fewshot_config=few), shots=2)
    assert made.shots[0]["text"] == "Which rope is hauled at hour 3?\nAnswer: the main\n\n"


def test_the_few_shot_split_is_chosen_before_the_training_split(tmp_path: Path) -> None:
    made = posed(task_of_rows(tmp_path, ROWS, POOL, fewshot_split="test"), shots=1)
    assert made.summary["pool"] == len(ROWS)


@pytest.mark.parametrize(
    ("changes", "shots", "said"),
    [
        ({}, 21, r"test.jsonl:1: 21 solved examples are wanted, but the split train has 20; ask for fewer"),
        ({"training_split": None}, 6, r"but the split test has 5 beside the question itself"),
        ({"fewshot_config": {"samples": POOL[:1]}}, 2, r"but the samples has 1; ask for fewer"),
    ],
)
def test_more_examples_than_the_pool_has_are_refused(
    tmp_path: Path, changes: dict[str, Any], shots: int, said: str
) -> None:
    with pytest.raises(DataError, match=said):
        posed(task_of_rows(tmp_path, ROWS, POOL, **changes), shots=shots)


def test_only_examples_that_are_used_are_written(tmp_path: Path) -> None:
    made = posed(task_of_rows(tmp_path, ROWS[:1], POOL), shots=4)
    assert len(made.shots) == made.summary["examples"] == 4 and made.summary["pool"] == 20
    assert sorted(made.questions[0]["shots"]) == [0, 1, 2, 3]
