"""Tasks of lm-eval are asked as lm-eval asks them (benchmarks/posed.py compares with it), and bad ones are
refused with file and row.
"""

from pathlib import Path
from typing import Any

import pytest

from atelier.engine.config.error import ConfigError, DataError
from atelier.engine.data.evaluation import task_questions
from atelier.engine.io.evaluation_files import find
from tests.engine.data.evaluation.posing import ROW, ROWS, posed, task_of_rows


def test_options_follow_the_context_with_the_delimiter_and_shots_end_with_theirs(tmp_path: Path) -> None:
    task = task_of_rows(
        tmp_path, [ROW], [{**ROWS[0], "label": 0}], description="Set sails.\n\n", num_fewshot=1,
        fewshot_delimiter="\n--\n",
    )  # fmt: skip
    made = posed(task)
    [one] = made.questions
    assert (one["options"], one["answer"], one["answer_text"]) == ([" the jib", " the main"], 1, "the main")
    assert one["parts"] == ["Which sail is set first?"] and one["id"] == one["group"] == "0"
    assert made.asked(0) == (
        "Set sails.\n\nWhich sail is set at hour 0?\nAnswer: the jib\n--\nWhich sail is set first?\nAnswer:"
    )
    assert made.about["metrics"][0]["name"] == "acc" and made.about["shots"] == 1


def test_a_field_a_list_and_a_number_of_an_option_need_no_template(tmp_path: Path) -> None:
    row = {"asked": "Is it ebb? {{no template}}", "answer": "yes"}
    keys = {"doc_to_text": "asked", "doc_to_target": "answer", "doc_to_choice": ["no", "yes"]}
    [one] = posed(task_of_rows(tmp_path, [row], **keys)).questions
    assert (one["context"], one["answer"]) == ("Is it ebb? {{no template}}", 1)


def test_a_text_that_is_a_number_makes_each_option_a_context_that_the_target_continues(
    tmp_path: Path,
) -> None:
    row = {"sentence": "The rope held because _ was new.", "option1": "it", "option2": "she", "answer": "2"}
    keys = {
        "doc_to_text": "{{answer|int - 1}}",
        "doc_to_target": "{{sentence.split('_')[1].strip()}}",
        "doc_to_choice": "{% set b = sentence.split('_')[0] %}{{[b ~ option1, b ~ option2]}}",
    }
    [one] = posed(task_of_rows(tmp_path, [row], **keys)).questions
    assert one["contexts"] == ["The rope held because it", "The rope held because she"]
    assert (one["context"], one["options"], one["answer"]) == ("", [" was new."] * 2, 1)
    assert one["answer_text"] == "The rope held because she was new."


CLOZE = {
    "output_type": "loglikelihood",
    "doc_to_text": "{{text.split(' ')[:-1]|join(' ')}}",
    "doc_to_target": "{{' ' + text.split(' ')[-1]}}",
    "doc_to_choice": None,
    "target_delimiter": "",
}
FREE = {"output_type": "generate_until", "doc_to_target": "answers", "doc_to_choice": None}
ROLLING = {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{text}}"}


def test_a_cloze_continues_with_the_target_alone(tmp_path: Path) -> None:
    [one] = posed(task_of_rows(tmp_path, [{"text": "the tide is out"}], **CLOZE)).questions
    assert (one["context"], one["options"], one["answer_text"]) == ("the tide is", [" out"], "out")


def test_a_free_answer_has_all_targets_and_ends_where_the_task_says(tmp_path: Path) -> None:
    row = {"question": "How deep?", "answers": ["seven fathoms", 7]}
    made = posed(task_of_rows(tmp_path, [row], [row | {"question": "How far?"}], **FREE, num_fewshot=1))
    assert made.questions[0]["targets"] == ["seven fathoms", "7"] and made.questions[0]["options"] == []
    assert made.about["until"] == ["\n\n"] and made.about["max_tokens"] == 256
    assert made.shots == [{"id": "0", "text": "How far?\nAnswer: seven fathoms\n\n"}]


def test_a_text_is_its_own_target_and_has_no_shots(tmp_path: Path) -> None:
    task = task_of_rows(tmp_path, [{"text": "A log book."}], [{"text": "x"}], **ROLLING, doc_to_choice=None)
    [one] = posed(task).questions
    assert (one["context"], one["targets"], one["parts"]) == ("", ["A log book."], ["A log book."])
    with pytest.raises(DataError, match=r"sail.yaml: texts have no solved examples; give shots=0"):
        posed(task, shots=1)


def test_questions_on_the_same_passage_are_one_group(tmp_path: Path) -> None:
    passage = "A long passage about a harbour and its boats."
    rows = [{**row, "passage": passage if n < 2 else f"{passage} {n}"} for n, row in enumerate(ROWS[:4])]
    made = posed(task_of_rows(tmp_path, rows, doc_to_text="{{passage}}\n{{question}}"))
    assert [one["group"] for one in made.questions] == ["0", "0", "2", "3"]
    assert made.summary["groups"] == 3 and made.summary["questions"] == 4
    assert made.questions[0]["parts"] == [ROWS[0]["question"], passage]


@pytest.mark.parametrize("ending", ["json", "csv", "parquet"])
def test_rows_are_read_from_each_kind_of_file(tmp_path: Path, ending: str) -> None:
    import csv
    import json

    file = tmp_path / f"rows.{ending}"
    if ending == "json":
        file.write_text(json.dumps(ROWS))
    elif ending == "csv":
        with file.open("w", newline="") as opened:
            writer = csv.DictWriter(opened, list(ROWS[0]))
            writer.writeheader()
            writer.writerows(ROWS)
    else:
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pytest.importorskip("pyarrow").Table.from_pylist(ROWS), file)
    expected = posed(task_of_rows(tmp_path, ROWS)).questions
    keys = {"dataset_path": ending, "dataset_kwargs": {"data_files": {"test": file.name}}}
    assert posed(task_of_rows(tmp_path, [], **keys)).questions == expected


def test_a_named_data_set_is_read_from_the_folder_of_data_sets(tmp_path: Path) -> None:
    (tmp_path / "data/harbour/sails/en").mkdir(parents=True)
    task = task_of_rows(tmp_path, ROWS, dataset_path="harbour/sails", dataset_name="en", dataset_kwargs=None)
    with pytest.raises(
        ConfigError, match=r"the split test of harbour/sails is not there: no .*/en/test.jsonl; put"
    ):
        posed(task)
    (tmp_path / "test.jsonl").rename(tmp_path / "data/harbour/sails/en/test.jsonl")
    assert posed(task).summary["questions"] == len(ROWS)


BAD: dict[str, tuple[list[Any], dict[str, Any], str]] = {
    "no rows": ([], {}, r"sail.yaml: has no questions; give a source"),
    "unknown field": (
        [ROW],
        {"doc_to_text": "{{qestion}}"},
        r"test.jsonl:1: doc_to_text of .*sail.yaml: 'qestion' is undefined; fields there: first, label,"
        r" question, second; did you mean question\?",
    ),
    "missing field": ([ROW, {"question": "x"}], {}, r"test.jsonl:2: doc_to_choice .*'first' is undefined"),
    "missing label": ([ROW, {**ROW, "label": None}], {}, r":2: the answer 'None' is none of the 2 options"),
    "answer too large": ([{**ROW, "label": 2}], {}, r"the answer '2' is none of the 2 options: 'the jib'"),
    "answer negative": ([{**ROW, "label": -1}], {}, r"the answer '-1' is none of the 2 options"),
    "answer of another text": (
        [{**ROW, "label": "a spar"}],
        {},
        r"the answer 'a spar' is none .* an option or its number from 0",
    ),
    "several right options": ([{**ROW, "label": [0, 1]}], {}, r"several right options, which is not"),
    "one option": ([ROW], {"doc_to_choice": ["a"]}, r"test.jsonl:1: has 1 options; a choice needs two"),
    "empty option": ([{**ROW, "first": " "}], {}, r"test.jsonl:1: option 0 is empty; give its text"),
    "option that is no text": ([{**ROW, "first": 3}], {}, r"test.jsonl:1: option 0 is a number, not text"),
    "options that are no list": ([ROW], {"doc_to_choice": "{{first}}"}, r"no list of options, but .the jib."),
    "the same twice": (
        [*ROWS, ROWS[4], ROWS[0]],
        {},
        r":7: asks the same as .*:5 \(ids 4 and 6, 0 and 7\); keep one",
    ),
    "half a character": (
        [ROW],
        {"doc_to_text": "{{'\\ud83d'}}"},
        r"test.jsonl:1: doc_to_text of .*UnicodeEncodeError",
    ),
    "a row that is no object": ([[1]], {}, r"test.jsonl:1: a list where an object is expected"),
    "text and number": (
        [ROW, {**ROW, "question": "1", "label": "x"}],
        {"doc_to_text": "{{question}}", "doc_to_target": "{{label}}", "doc_to_choice": ["0", "1"]},
        r"doc_to_text: gives text for some rows, but for others a whole number, .*:1, .*:2\); write a word",
    ),
    "no answer": ([{"question": "x", "answers": []}], FREE, r"gives no answer \(given: '\[\]'\)"),
    "template": ([ROW], {"doc_to_text": "{{question"}, r"sail.yaml.doc_to_text: is not a template"),
    "description by row": (
        ROWS,
        {"description": "{{question}}"},
        r"description: differs between questions \(6 texts\)",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_asked_is_refused_with_its_place(tmp_path: Path, name: str) -> None:
    rows, changes, said = BAD[name]
    with pytest.raises((DataError, ConfigError), match=said):
        posed(task_of_rows(tmp_path, rows, **changes))


HOSTILE = {
    "attribute": "{{ ''.__class__.__mro__ }}",
    "power": "{{ 9 ** 9 ** 9 }}",
    "range": "{% for n in range(10 ** 9) %}x{% endfor %}",
    "too long": "{% for n in range(9999) %}{{ 'x' * 99999 }}{% endfor %}",
    "memory": "{{ 'x' * 99999999999 }}",
    "endless": "{{ ('a' * 40) | regex_replace('(a+)+b', '') }}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "file": "{% include '/etc/passwd' %}",
    "changes the row": "{{ numbers.append(1) }}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_end_in_an_error(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_questions, "CPU_S", 0.5)
    with pytest.raises((DataError, ConfigError), match=r"sail.yaml"):
        posed(task_of_rows(tmp_path, [{**ROW, "numbers": []}], doc_to_text=HOSTILE[name]))


CODE = """
import datasets

def process_docs(dataset: datasets.Dataset) -> datasets.Dataset:
    return dataset.filter(lambda row: row["label"] < 2).map(lambda row: {"query": row["question"].upper()})

def options(row):
    return [row["first"], row["second"]]
"""


def test_code_of_a_task_runs_only_if_its_source_is_named(tmp_path: Path) -> None:
    task = task_of_rows(tmp_path, [ROW, {**ROW, "label": 2}], doc_to_text="query", doc_to_choice=None)
    code = "process_docs: !function steps.process_docs\ndoc_to_choice: !function steps.options\n"
    task.write_text(task.read_text() + code)
    (tmp_path / "steps.py").write_text(CODE)
    with pytest.raises(ConfigError, match=r"process_docs: is Python code .*pose.allow=\[.*sail.yaml\]"):
        posed(task)
    [one] = posed(task, allow=(str(task),)).questions
    assert (one["context"], one["options"]) == ("WHICH SAIL IS SET FIRST?", [" the jib", " the main"])
    (tmp_path / "steps.py").write_text("import nothing_like_this")
    with pytest.raises(ConfigError, match=r"its code cannot be imported \(ModuleNotFoundError"):
        posed(task, allow=(str(task),))


def test_a_task_names_no_files_elsewhere_unless_it_is_trusted(tmp_path: Path) -> None:
    secret = tmp_path / "secret.jsonl"
    secret.write_text('{"q": "one two", "a": "three"}\n')
    folder = tmp_path / "task"
    folder.mkdir()
    (folder / "link.jsonl").symlink_to(secret)
    for number, name in enumerate((str(secret), "../secret.jsonl", "link.jsonl")):
        task = folder / f"task{number}.yaml"
        task.write_text(
            f"task: t\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {name}}}}}\n"
            "output_type: generate_until\ntest_split: test\ndoc_to_text: q\ndoc_to_target: a\n"
        )
        with pytest.raises(ConfigError, match=r"lies outside the folder .*pose.allow=\["):
            find(str(task), str(folder / "data"), (), "evals")
        assert find(str(task), str(folder / "data"), (str(task),), "evals").files["questions"]
