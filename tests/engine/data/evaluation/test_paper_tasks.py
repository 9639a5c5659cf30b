"""The tasks of conf/questions ask what lm-eval's own tasks ask, whose Python code they write as templates."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from atelier.engine.io.evaluation_files import OWN
from tests.engine.data.evaluation.posing import posed, write_rows

PROBLEM = {"options": ["a boat", "a rope", "a sail", "a spar"], "answer": "B"}
# task -> its row, context (or contexts), options, place of the right one
TASKS: dict[str, tuple[dict[str, Any], str | list[str], list[str], int]] = {
    "lambada": ({"text": "Ebb and flow"}, "Ebb and", [" flow"], 0),
    "race_h": (
        {
            "article": "The tide.",
            "problems": [
                {**PROBLEM, "question": "What is hauled?"},
                {**PROBLEM, "question": "One hauls  _  ."},
                {**PROBLEM, "question": "What is tied?", "answer": "D"},
            ],
        },
        "Article: The tide.\n\nQuestion: What is hauled?\nAnswer: a rope\nOne hauls a rope\nWhat is tied?",
        [" a boat", " a rope", " a sail", " a spar"],
        3,
    ),
    "boolq": (
        {"passage": "P.", "question": "is it ebb", "label": 1},
        "P.\nQuestion: is it ebb?\nAnswer:",
        [" no", " yes"],
        1,
    ),
    "piqa": (
        {"goal": "Sail", "sol1": "a", "sol2": "b", "label": 0},
        "Question: Sail\nAnswer:",
        [" a", " b"],
        0,
    ),
    "hellaswag": (
        {
            "activity_label": "Tie knots",
            "ctx_a": "[header] Ropes [title]",
            "ctx_b": "she Said",
            "label": "1",
            "endings": [" pulls.  [step] hard", 'it\'s "tied"', "c", "d"],
        },
        "Tie knots: Ropes. She said",
        [" pulls.  hard", ' it\'s "tied"', " c", " d"],
        1,
    ),
    "winogrande": (
        {"sentence": "It held as _ was new. ", "option1": "rope", "option2": "Ann's", "answer": "2"},
        ["It held as rope", "It held as Ann's"],
        [" was new."] * 2,
        1,
    ),
    "anli_r2": (
        {"premise": "P.", "hypothesis": "H.", "label": 1},
        "P.\nQuestion: H. True, False, or Neither?\nAnswer:",
        [" True", " Neither", " False"],
        1,
    ),
    "hans": (
        {"premise": "P.", "hypothesis": "H.", "label": 1, "heuristic": "subsequence"},
        "P.\nQuestion: H. True or False?\nAnswer:",
        [" True", " False"],
        1,
    ),
    "wic": (
        {"sentence1": "A bank.", "sentence2": "The bank.", "start1": 2, "end1": 6, "label": 0},
        "Sentence 1: A bank.\nSentence 2: The bank.\nQuestion: Is the word 'bank' used in the same way in the"
        " two sentences above?\nAnswer:",
        [" no", " yes"],
        0,
    ),
}


def test_each_task_of_the_folder_is_tested() -> None:
    tasks = {path.stem for path in OWN.glob("*.yaml") if "probe" not in yaml.safe_load(path.read_text())}
    assert tasks == {*TASKS, "builtins"}


@pytest.mark.parametrize("name", TASKS)
def test_a_row_is_asked_as_lm_eval_asks_it(tmp_path: Path, name: str) -> None:
    row, asked, options, answer = TASKS[name]
    text = (OWN / f"{name}.yaml").read_text()
    word = tmp_path / f"{name}.yaml"
    word.write_text(text)
    for file in yaml.safe_load(text)["dataset_kwargs"]["data_files"].values():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        write_rows(tmp_path / file, [row])
    [one] = posed(word, shots=0).questions
    assert one.get("contexts", one["context"]) == asked
    assert (one["options"], one["answer"]) == (options, answer)
