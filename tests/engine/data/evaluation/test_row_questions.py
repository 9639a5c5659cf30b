"""Files with one question a row."""

import functools
from pathlib import Path
from typing import Any

import pytest

from atelier.engine.config.error import ConfigError, DataError
from tests.engine.data.evaluation.posing import posed, write_rows

QUESTION = {"question": "Which sail is set first?", "options": ["jib", "main", "mizzen"], "answer": 1}
FREE = {"question": "How deep is it?", "answer": "seven fathoms"}


def test_options_make_a_choice_and_a_passage_comes_first(tmp_path: Path) -> None:
    row = {**QUESTION, "passage": "The wind is up.", "id": "sails-1"}
    made = posed(write_rows(tmp_path / "sails.jsonl", [row]))
    [one] = made.questions
    assert one["context"] == "The wind is up.\nQuestion: Which sail is set first?\nAnswer:"
    assert (one["options"], one["answer"], one["answer_text"]) == ([" jib", " main", " mizzen"], 1, "main")
    assert one["parts"] == ["Which sail is set first?", "The wind is up."]
    assert (made.about["kind"], made.about["name"], one["id"]) == ("choice", "sails", "sails-1")
    assert [metric["name"] for metric in made.about["metrics"]] == ["acc", "acc_norm"]


@pytest.mark.parametrize("answer", [1, "B", "b", "main"])
def test_an_answer_is_a_number_a_letter_or_the_text(tmp_path: Path, answer: Any) -> None:
    [one] = posed(write_rows(tmp_path / "s.jsonl", [{**QUESTION, "answer": answer}])).questions
    assert one["answer"] == 1


def test_a_letter_that_is_the_text_of_one_option_is_that_option(tmp_path: Path) -> None:
    row = {**QUESTION, "options": ["C", "A", "B"], "answer": "A"}
    assert posed(write_rows(tmp_path / "s.jsonl", [row])).questions[0]["answer"] == 1


def test_answers_without_options_are_free_and_a_prompt_is_asked_as_it_is(tmp_path: Path) -> None:
    rows = [FREE, {"prompt": "Depth: ", "answers": ["7", 7.5]}]
    made = posed(write_rows(tmp_path / "s.jsonl", rows))
    assert [one["context"] for one in made.questions] == ["Question: How deep is it?\nAnswer:", "Depth: "]
    assert [one["targets"] for one in made.questions] == [["seven fathoms"], ["7", "7.5"]]
    assert (made.about["kind"], made.about["until"]) == ("free", ["\n"])
    assert made.questions[1]["id"] == "2"


def test_settings_beside_the_rows_make_them_a_cloze_or_texts(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", [{"context": "The tide is", "answer": "out"}])
    word = tmp_path / "tide.yaml"
    word.write_text("source: rows.jsonl\nkind: cloze\ndescription: 'Go on. '\n")
    made = posed(word)
    assert made.questions[0]["options"] == [" out"] and made.asked(0) == "Go on. The tide is"
    write_rows(tmp_path / "rows.jsonl", [{"text": "A log book."}])
    word.write_text("source: rows.jsonl\nkind: text\n")
    assert posed(word).questions[0]["targets"] == ["A log book."]


def test_rows_of_the_split_train_are_the_pool(tmp_path: Path) -> None:
    rows = [
        {**FREE, "question": f"How deep is it at hour {n}?", "split": "train" if n else "test"}
        for n in range(4)
    ]
    made = posed(write_rows(tmp_path / "s.jsonl", rows), shots=2)
    assert len(made.questions) == 1 and made.summary["pool"] == 3 and len(made.shots) == 2
    assert all(shot["text"].endswith("\nAnswer: seven fathoms\n\n") for shot in made.shots)


BAD: dict[str, tuple[list[Any], str]] = {
    "only a pool": ([{**QUESTION, "split": "train"}], r"no questions \(all 1 rows are of the split train\)"),
    "no question": (
        [{"qestion": "x", "answer": "y"}],
        r":1: has no question or context or prompt; .* did you"
        r" mean question\?",
    ),
    "question that is no text": ([{**FREE, "question": 3}], r":1: field 'question' is a number, not text"),
    "empty question": ([{**FREE, "question": " "}], r":1: field 'question' is empty"),
    "no answer": ([{"question": "x"}], r"s.jsonl:1: has no answer; fields there: question"),
    "null answer": ([{**QUESTION, "answer": None}], r"s.jsonl:1: has no answer"),
    "empty answer": ([{**FREE, "answer": ""}], r":1: the answer '' is not text"),
    "strange answer": ([{**FREE, "answer": {"a": 1}}], r":1: the answer .* is not text"),
    "one option": ([{**QUESTION, "options": ["jib"]}], r":1: has 1 options; a choice needs two"),
    "no options": ([{**QUESTION, "options": []}], r":1: has 0 options"),
    "options that are no list": ([{**QUESTION, "options": "jib"}], r":1: options is text, not a list"),
    "empty option": ([{**QUESTION, "options": ["jib", ""]}], r":1: option 1 is empty"),
    "none of the options": (
        [{**QUESTION, "answer": "spar"}],
        r"'spar' is none of the 3 options: 'jib',"
        r" 'main', 'mizzen'; give a number from 0, a letter, or the option's text",
    ),
    "letter too late": ([{**QUESTION, "answer": "D"}], r":1: the answer 'D' is none"),
    "number too large": ([{**QUESTION, "answer": 3}], r":1: the answer '3' is none"),
    "truth for an answer": ([{**QUESTION, "answer": True}], r":1: the answer 'True' is none"),
    "mixed": ([QUESTION, FREE], r":2: has no options, but the questions of this set are of kind choice"),
    "mixed the other way": ([FREE, QUESTION], r":2: has options, but .* of kind free; put other kinds into"),
    "equal ids": (
        [{**FREE, "id": 1}, {**QUESTION, "question": "y", "options": None, "id": "1"}],
        r":2: its id '1' is also that of .*s.jsonl:1; make them unique",
    ),
    "strange id": ([{**FREE, "id": [1]}], r":1: id is a list, which is no name"),
    "the same twice": ([FREE, FREE], r":2: asks the same as .*:1 \(ids 1 and 2\); keep one of each"),
    "not JSON": (["x"], r":1: text where an object is expected; fix it$"),
    "nested too deep": (
        [{**FREE, "x": functools.reduce(lambda x, _: [x], range(500), 0)}],
        r":1: holds .*deeper",
    ),
    "NaN": ([{**FREE, "weight": float("nan")}], r":1: holds what is not JSON"),
    "half a character": ([{**FREE, "answer": "\ud83d"}], r":1: holds what is not JSON"),
}


@pytest.mark.parametrize("name", BAD)
def test_rows_that_cannot_be_asked_are_refused_with_their_place(tmp_path: Path, name: str) -> None:
    rows, said = BAD[name]
    with pytest.raises((DataError, ConfigError), match=said):
        posed(write_rows(tmp_path / "s.jsonl", rows))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("question,answer,answer\na,b,c\n", r"s.csv:1: two columns have the same name; rename one"),
        ("question,answer\na\n", r"s.csv:2: has not as many values as the header"),
        ("question,answer\na,b,c\n", r"s.csv:2: has not as many values as the header"),
        ('question,answer\n"a,b\n', r"s.csv:\d: not CSV \(unexpected end of data\)"),
        ("", r"s.csv: has no questions"),
    ],
)
def test_bad_tables_are_refused_with_their_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "s.csv").write_text(text)
    with pytest.raises(DataError, match=said):
        posed(tmp_path / "s.csv")


def test_many_equal_questions_are_counted(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"\(ids 1 and 2, 1 and 3, 1 and 4 and 6 more\)"):
        posed(write_rows(tmp_path / "s.jsonl", [FREE] * 10))


def test_what_is_left_out_and_equal_options_are_told(tmp_path: Path) -> None:
    rows = [{**QUESTION, "question": f"Sail {n}?", "options": ["jib", "main", "jib"]} for n in range(5)]
    made = posed(write_rows(tmp_path / "s.jsonl", rows), most=2)
    assert made.summary["left_out"] == 3 and made.summary["equal_options"] == 2
    assert "3 questions after the first 2 are left out" in made.warnings
    assert "2 questions have two equal options" in made.warnings


def test_one_group_of_all_questions_is_told(tmp_path: Path) -> None:
    rows = [{**FREE, "question": f"Sail {n}?", "passage": "One passage for all."} for n in range(3)]
    made = posed(write_rows(tmp_path / "s.jsonl", rows))
    assert "all 3 questions are one group" in made.warnings and made.summary["groups"] == 1
