"""Sources of evaluation sets are found and read without running anything that they name."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from atelier.engine.config.error import ConfigError
from atelier.engine.io.evaluation_files import OWN, QUESTIONS, find, read_yaml
from tests.engine.data.evaluation.posing import CHOICE, ROWS, task_of_rows, write_rows, write_task


def test_includes_are_resolved_and_own_keys_win(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("task: base\ndoc_to_text: x\ntag: [a]\n")
    (tmp_path / "more").mkdir()
    (tmp_path / "more/a.yaml").write_text("include: [../base.yaml]\ntask: a\n")
    assert read_yaml(tmp_path / "more/a.yaml") == {"task": "a", "doc_to_text": "x", "tag": ["a"]}


BAD_YAML = {
    "task: [": r"a.yaml:1: is not a task's YAML",
    "- a": r"no keys at its top",
    "": r"no keys at its top",
    "1: a": r"no keys at its top",
    "task: &x [a]\ntag: *x": r"a.yaml:2: .*aliases \(\*name\) are not supported",
    "task: a\ntask: b": r"a.yaml:1: .*the key task occurs twice",
    "task: !!python/object/apply:os.system ['true']": r"could not determine a constructor",
    "task: 2020-01-01": r"date is not JSON serializable",
    "task: .nan": r"not JSON compliant",
    "task: '\\ud800'\nx: \"\\uD800\"": r"is not a task's YAML",
    "? [a]\n: b": r"is not a task's YAML",
    "[" * 5000: r"is not a task's YAML",
    "include: a.yaml": r"a.yaml: includes itself",
    "include: nothing.yaml": r"a.yaml.include: .*nothing.yaml does not exist",
    "include: 3": r"a.yaml.include: is not a path",
    "task: \x00": r"is not a task's YAML",
    "x" * (1 << 20) + "x": r"is larger than 1 MiB",
}


@pytest.mark.parametrize("text", BAD_YAML, ids=range(len(BAD_YAML)))
def test_a_bad_yaml_is_refused_with_its_place(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(ConfigError, match=BAD_YAML[text]):
        read_yaml(tmp_path / "a.yaml")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a class": ({"class": "a.B"}, r"sail.yaml.class: is a task written in Python; run it with lm-eval"),
    "a data set of code": ({"custom_dataset": "x"}, r".custom_dataset: is a data set made by Python code"),
    "filters": (
        {"filter_list": [{"name": "a", "filter": [{"function": "regex"}]}]},
        r".filter_list: changes",
    ),
    "code": ({"unsafe_code": True}, r".unsafe_code: runs generated code"),
    "repeats": ({"repeats": 4}, r".repeats: asks each question several times"),
    "a group": ({"task": ["a", "b"]}, r".task: is a list: the YAML is a group"),
    "a typo": ({"doc_to_txt": "x"}, r".doc_to_txt: no such key; did you mean doc_to_text\?"),
    "no target": ({"doc_to_target": None}, r".doc_to_target: is missing"),
    "no text": ({"doc_to_text": None}, r".doc_to_text: is missing"),
    "no options": ({"doc_to_choice": None}, r".doc_to_choice: is missing: multiple_choice needs options"),
    "no split": ({"test_split": None}, r"names no split with questions; give test_split or validation_split"),
    "a split without files": (
        {"test_split": "dev"},
        r"data_files: has no files of the split dev; there are: train",
    ),
    "no files": ({"dataset_kwargs": None}, r"data_files: is needed with dataset_path json"),
    "a field of the data": (
        {"dataset_kwargs": {"field": "a"}},
        r"dataset_kwargs.field: no such key; known here: data_files",
    ),
    "an address": (
        {"dataset_kwargs": {"data_files": {"test": "https://x.org/a.jsonl"}}},
        r"is not a local path; download",
    ),
    "absent data": (
        {"dataset_kwargs": {"data_files": {"test": "ebb.jsonl"}}},
        r"data/ebb.jsonl is not there; put it there",
    ),
    "another kind of file": ({"dataset_path": "csv"}, r"test.jsonl is no csv file; known: .csv"),
    "an absent data set": (
        {"dataset_path": "a/b"},
        r"the split test of a/b is not there: no .*data/a/b/test.jsonl",
    ),
    "a path as a name": ({"dataset_path": "../x"}, r"dataset_path: ../x is no name of a data set; give"),
    "a loading script": ({"dataset_path": "load.py"}, r"dataset_path: load.py is a loading script"),
    "an unknown metric": (
        {"metric_list": [{"metric": "acc_nrm"}]},
        r"metric_list.0.metric: acc_nrm is no metric .*mean acc_norm\?",
    ),
    "another aggregation": (
        {"metric_list": [{"metric": "acc", "aggregation": "nanmean"}]},
        r"nanmean is not supported for acc; give mean",
    ),
    "a wrong direction": (
        {"metric_list": [{"metric": "acc", "higher_is_better": False}]},
        r"higher_is_better: False is wrong for acc",
    ),
    "sampling": (
        {"output_type": "generate_until", "generation_kwargs": {"temperature": 1}},
        r"generation_kwargs.temperature",
    ),
    "a name with a slash": ({"task": "a/b"}, r"'a/b' cannot be a set's name"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_task_may_not_say_is_refused_by_name(tmp_path: Path, name: str) -> None:
    changes, said = REFUSED[name]
    with pytest.raises(ConfigError, match=said):
        find(str(task_of_rows(tmp_path, ROWS, **changes)), str(tmp_path / "data"), (), "evals")


def test_metrics_of_code_are_named_as_code(tmp_path: Path) -> None:
    task = write_task(tmp_path)
    task.write_text(task.read_text() + "metric_list:\n- metric: !function a.b\n")
    with pytest.raises(ConfigError, match=r"metric_list.0.metric: is Python code \(!function a.b\)"):
        find(str(task), "", (), "evals")
    with pytest.raises(ConfigError, match=r"!function a.b is not supported here"):
        find(str(task), "", (str(task),), "evals")


def test_keys_without_meaning_change_nothing(tmp_path: Path) -> None:
    plain = find(str(task_of_rows(tmp_path, ROWS)), "", (), "evals").document
    more = {"tag": "x", "metadata": {"version": 1}, "should_decontaminate": True, "repeats": 1}
    assert find(str(write_task(tmp_path, **more)), "", (), "evals").document == plain


def test_a_pattern_names_files_in_order(tmp_path: Path) -> None:
    for name in ("b", "a"):
        write_rows(tmp_path / f"part-{name}.jsonl", ROWS)
    task = write_task(tmp_path, dataset_kwargs={"data_files": {"test": "part-*.jsonl"}})
    files = find(str(task), "", (), "evals").files[QUESTIONS]
    assert [Path(one).name for one in files] == ["part-a.jsonl", "part-b.jsonl"]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        (
            "helaswag",
            r"evals: there is no evaluation set 'helaswag'; did you mean hellaswag\? known: adjectives",
        ),
        ("../evals/boolq", r"there is no evaluation set '../evals/boolq'"),
        ("", r"there is no evaluation set ''"),
        ("sial.yaml", r"sial.yaml does not exist; did you mean sail.yaml\?"),
        ("x.jsonl", r"x.jsonl does not exist"),
        ("a\udcffb", r"is not UTF-8"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(
    tmp_path: Path, word: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_task(tmp_path)
    with pytest.raises(ConfigError, match=said):
        find(word, "evals", (), "evals")


TASKS = [path.stem for path in sorted(OWN.glob("*.yaml")) if "\ntask: " in path.read_text()]


@pytest.mark.parametrize("name", TASKS)
def test_each_task_of_the_paper_says_which_file_is_missing(tmp_path: Path, name: str) -> None:
    said = rf"{name}.yaml.*{tmp_path}/\w+/\w+.jsonl is not there; put it there from .*, with the fields \w+"
    with pytest.raises(ConfigError, match=said):
        find(name, str(tmp_path), (), "evals")
    assert yaml.safe_load((OWN / f"{name}.yaml").read_text())["task"] == name


def test_a_task_without_a_name_is_called_as_its_file(tmp_path: Path) -> None:
    assert find(str(task_of_rows(tmp_path, ROWS, task=None)), "", (), "evals").name == CHOICE["task"]


@pytest.mark.parametrize("name", ["quiz.0", "quiz.5.draw1"])
def test_a_name_as_of_a_set_with_solved_examples_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ends as sets with solved examples do.*rename it"):
        find(str(write_rows(tmp_path / f"{name}.jsonl", ROWS)), "", (), "evals")
    assert find(str(write_rows(tmp_path / "quiz.v2.jsonl", ROWS)), "", (), "evals").name == "quiz.v2"


def test_a_named_set_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = find("builtins", str(tmp_path), (), "evals")
    assert found.files[QUESTIONS] == [str(OWN / "builtins.jsonl")]
