"""Probes: rows from a few lines of YAML, and parts of sets."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from atelier.engine.config.error import AtelierError
from atelier.engine.config.registry import kinds
from atelier.engine.io.evaluation_files import OWN
from tests.engine.data.evaluation.posing import Posed, posed, task_of_rows, write_rows

PROBES = [path for path in sorted(OWN.glob("*.yaml")) if "probe" in yaml.safe_load(path.read_text())]
TEMPLATES: dict[str, Any] = {
    "kind": "templates",
    "prompt": "On a {mood} day the {job} was a",
    "options": ["man", "woman"],
    "values": [0, 1],
    "slice": "{mood}",
    "each": {"job": ["cook", "judge"], "mood": ["good", "bad"]},
}


def probe(folder: Path, **settings: Any) -> Path:
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump({"probe": settings}))
    return path


def own(path: Path, folder: Path) -> Posed:
    """A probe of conf/questions, posed in another folder."""
    (folder / path.name).write_text(path.read_text())
    (folder / "builtins.jsonl").write_text((OWN / "builtins.jsonl").read_text())
    return posed(folder / path.name)


@pytest.mark.parametrize("path", PROBES, ids=lambda path: path.stem)
def test_each_probe_of_the_folder_has_parts_of_one_size(path: Path, tmp_path: Path) -> None:
    found = own(path, tmp_path)
    sizes: dict[str, int] = {}
    for line in found.questions:
        sizes[line["slice"]] = sizes.get(line["slice"], 0) + 1
    assert len(set(sizes.values())) == 1 < len(sizes)
    assert found.about["kind"] == ("valued" if "values" in found.questions[0] else "choice")
    assert not found.warnings


def test_each_kind_of_probe_is_used_in_the_folder() -> None:
    assert {yaml.safe_load(path.read_text())["probe"]["kind"] for path in PROBES} == set(kinds("probe"))


def test_the_paper_s_heuristics_are_parts_of_hans(tmp_path: Path) -> None:
    rows = [
        {"premise": f"P{n}.", "hypothesis": "H.", "label": 1, "heuristic": name}
        for n, name in enumerate(("lexical_overlap", "subsequence", "constituent"))
    ]
    (tmp_path / "hans").mkdir()
    write_rows(tmp_path / "hans" / "validation.jsonl", rows)
    word = tmp_path / "hans.yaml"
    word.write_text((OWN / "hans.yaml").read_text())
    assert [one["slice"] for one in posed(word).questions] == [row["heuristic"] for row in rows]


def test_templates_ask_each_combination_and_have_values_in_place_of_an_answer(tmp_path: Path) -> None:
    found = posed(probe(tmp_path, **TEMPLATES))
    asked = [(one["context"], one["slice"], one["options"], one["values"]) for one in found.questions]
    expected = [
        (f"On a {mood} day the {job} was a", mood) for job in ("cook", "judge") for mood in ("good", "bad")
    ]
    assert asked == [(*each, [" man", " woman"], [0.0, 1.0]) for each in expected]


@pytest.mark.parametrize("settings", [{}, {"seed": 3, "largest": 9, "questions": 7, "solved": 4}])
def test_solved_sums_tell_the_operation_and_both_signs_ask_one_sum(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    found = posed(probe(tmp_path, kind="operators", **settings))
    by_group: dict[str, list[dict[str, Any]]] = {}
    for one in found.questions:
        by_group.setdefault(one["item"], []).append(one)
        *solved, last = one["context"].splitlines()
        a, sign, b = last.removesuffix(" =").split()
        fits = set[str]()
        for act in (int.__add__, int.__sub__, int.__mul__):
            sums = [re.fullmatch(r"(\d+) (.) (\d+) = (-?\d+)", line) for line in solved]
            assert all(each and each[2] == sign for each in sums)
            assert all(each and {each[1], each[3]} != {a, b} for each in sums)
            if all(each and act(int(each[1]), int(each[3])) == int(each[4]) for each in sums):
                fits.add(str(act(int(a), int(b))))
        assert fits == {one["options"][one["answer"]].strip()} and len(set(one["options"])) == 3
    assert all(len(pair) == 2 and pair[0]["options"] == pair[1]["options"] for pair in by_group.values())
    assert len(by_group) == 3 * settings.get("questions", 100)


def test_formats_keep_the_order_of_options_and_search_for_the_question_s_own_words(tmp_path: Path) -> None:
    row = {
        "id": "sail",
        "question": "Which sail is set first at sea?",
        "options": ["jib", "main"],
        "answer": 1,
    }
    write_rows(tmp_path / "rows.jsonl", [row, {**row, "id": "pool", "question": "Which?", "split": "train"}])
    found = posed(probe(tmp_path, kind="formats", of="rows.jsonl"))
    asked = {one["slice"]: one for one in found.questions}
    text = row["question"]
    contexts = {
        "bare": text,
        "question": f"Question: {text}\nAnswer:",
        "qa": f"Q: {text}\nA:",
        "listed": f"{text}\n- jib\n- main\nAnswer:",
        "letters": f"{text}\nA. jib\nB. main\nAnswer:",
        "reversed": f"{text}\nA. main\nB. jib\nAnswer:",
    }
    assert {name: one["context"] for name, one in asked.items()} == contexts
    assert asked["letters"]["options"] == [" A", " B"] and asked["reversed"]["options"] == [" B", " A"]
    assert all(one["answer"] == 1 and one["item"] == "sail" for one in asked.values())
    assert len({one["group"] for one in asked.values()}) == 1
    assert all((one["parts"], one["answer_text"]) == ([text], "main") for one in asked.values())


def test_rows_may_name_parts_groups_and_values_themselves(tmp_path: Path) -> None:
    row = {
        "prompt": "The cook was a",
        "options": ["man", "woman"],
        "values": [0, 1],
        "slice": "x",
        "group": 7,
    }
    found = posed(write_rows(tmp_path / "mine.jsonl", [row, {**row, "prompt": "The judge was a"}]))
    assert [(one["slice"], one["group"]) for one in found.questions] == [("x", "1")] * 2
    assert found.about["kind"] == "valued"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({**TEMPLATES, "prompt": "The {jop} was a {job}"}, r"prompt: \{jop\} has no words.*did you mean job"),
        ({**TEMPLATES, "values": [0]}, "values: has 1 numbers for 2 options"),
        ({**TEMPLATES, "answer": "man"}, "both are given; give answer or values"),
        ({**TEMPLATES, "values": []}, "neither answer nor values is given"),
        ({**TEMPLATES, "values": [], "answer": "child"}, "answer 'child' is none of the 2 options"),
        ({**TEMPLATES, "prompt": "The cook was a"}, r"each.job: stands in no text; write \{job\}"),
        ({**TEMPLATES, "prompt": "The {job} was a"}, "asks the same as"),
        ({**TEMPLATES, "prompt": "The { job } was a {job}"}, r"\{ job \} has no words"),
        ({**TEMPLATES, "cases": [{"job": "smith"}]}, "each.job: is also in cases"),
        ({**TEMPLATES, "each": {name: ["x"] * 100 for name in ("job", "mood", "a")}}, "makes 1,000,000"),
        ({**TEMPLATES, "values": [0, 10**400]}, "values"),
        ({**TEMPLATES, "of": "rows.jsonl"}, "of"),
        ({"kind": "template"}, "did you mean templates"),
        ({"kind": "operators", "largest": 6, "questions": 99}, "questions: there are 2. sums"),
        ({"kind": "operators", "signs": {"add": ["+", "#"]}}, "needs two operations"),
        ({"kind": "operators", "signs": {"add": ["+", "#"], "subtract": ["-", "#"]}}, "not different signs"),
        ({"kind": "operators", "signs": {"add": ["+", ""], "subtract": ["-", "#"]}}, "no letters, digits"),
        ({"kind": "operators", "largest": 2000}, "largest"),
        ({"kind": "formats", "of": "many.jsonl"}, "q has 30 options, for 26 letters"),
        ({"kind": "formats", "of": "lines.jsonl"}, "an option of q has several lines"),
        ({"kind": "formats", "of": "twice.jsonl"}, "its id 'q' is also that of"),
        ({"kind": "formats", "of": "../outside.jsonl"}, "outside the folder.*pose.allow"),
        ({"kind": "formats"}, "of"),
        ({"kind": "formats", "of": "row.jsonl"}, "did you mean.*rows.jsonl"),
        ({"kind": "formats", "of": "rows.txt"}, "not a file of rows"),
        ({"kind": "formats", "of": "rows.jsonl", "formats": ["bare", "letter"]}, "formats"),
    ],
)
def test_settings_that_do_not_fit_are_refused_with_their_place(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    row: dict[str, Any] = {"id": "q", "question": "Which?", "options": ["a", "b"], "answer": 0}
    write_rows(tmp_path / "rows.jsonl", [row])
    write_rows(tmp_path / "many.jsonl", [{**row, "options": [f"o{n}" for n in range(30)]}])
    write_rows(tmp_path / "lines.jsonl", [{**row, "options": ["a", "b\nC. c"]}])
    write_rows(tmp_path / "twice.jsonl", [row, {**row, "question": "Why?"}])
    write_rows(tmp_path.parent / "outside.jsonl", [row])
    with pytest.raises(AtelierError, match=f"(?s){message}"):
        posed(probe(tmp_path, **settings))


def test_a_probe_has_no_solved_examples_and_rows_need_numbers_as_values(tmp_path: Path) -> None:
    with pytest.raises(AtelierError, match="a probe has no solved examples"):
        posed(probe(tmp_path, **TEMPLATES), shots=2)
    row = {"prompt": "The cook was a", "options": ["man", "woman"]}
    for values in ([0], [0, "1"], [0, True], {"a": 1}, "no"):
        path = tmp_path / "rows.jsonl"
        path.write_text(json.dumps({**row, "values": values}) + "\n")
        with pytest.raises(AtelierError, match="values must be 2 numbers"):
            posed(path)
    write_rows(tmp_path / "rows.jsonl", [{**row, "answer": 0, "slice": ["x"]}])
    with pytest.raises(AtelierError, match="slice is a list, which is no name"):
        posed(tmp_path / "rows.jsonl")


def test_a_task_whose_rows_lack_its_part_is_refused(tmp_path: Path) -> None:
    row = {"question": "Q?", "first": "a", "second": "b", "label": 0}
    with pytest.raises(AtelierError, match="has no field 'heuristic'"):
        posed(task_of_rows(tmp_path, [row], metadata={"slice": "heuristic"}))


def test_words_are_searched_for_once_and_braces_can_be_written(tmp_path: Path) -> None:
    own = {"prompt": "{{ The {job} of the {mood} town was a", "item": "{job} of the {mood} town"}
    changed = {**TEMPLATES, **own}
    [one, *_] = posed(probe(tmp_path, **changed)).questions
    assert one["parts"] == ["{ The cook of the good town was a"] == [one["context"]]


def test_questions_on_one_passage_are_one_group_in_every_format(tmp_path: Path) -> None:
    passage = "The wind is up and the tide runs out of the old harbour before noon."
    rows = [
        {"passage": passage, "question": f"Which {what}?", "options": ["jib", "main"], "answer": 0}
        for what in ("sail", "rope")
    ]
    write_rows(tmp_path / "rows.jsonl", rows)
    found = posed(probe(tmp_path, kind="formats", of="rows.jsonl"))
    assert len(found.questions) == 12 and len({one["group"] for one in found.questions}) == 1


@pytest.mark.parametrize(("most", "kept"), [(1, 1), (2, 2), (5, 4), (6, 6), (99, 6)])
def test_a_limit_keeps_whole_items(most: int, kept: int, tmp_path: Path) -> None:
    row = {"question": "Which?", "options": ["a", "b"], "answer": 0}
    write_rows(tmp_path / "rows.jsonl", [{**row, "question": f"Which {n}?"} for n in range(3)])
    path = probe(tmp_path, kind="formats", of="rows.jsonl", formats=["bare", "qa"])
    found = posed(path, most=most)
    assert len(found.questions) == kept
    assert ("are left out" in found.warnings) == (kept < 6)


def test_a_row_may_have_no_part_and_a_pool_needs_none(tmp_path: Path) -> None:
    row = {"question": "Q?", "first": "a", "second": "b", "label": 0}
    rows = [{**row, "heuristic": None}, {**row, "question": "R?", "heuristic": 3}]
    pool = [{**row, "question": "S?"}]
    asked = posed(task_of_rows(tmp_path, rows, pool, metadata={"slice": "heuristic"}), shots=1).questions
    assert [one.get("slice") for one in asked] == [None, "3"]
    with pytest.raises(AtelierError, match="heuristic is a list, which names no part"):
        posed(task_of_rows(tmp_path, [{**row, "heuristic": []}], metadata={"slice": "heuristic"}))
    with pytest.raises(AtelierError, match=r"slice: lm-eval has no such key; metadata: \{slice"):
        posed(task_of_rows(tmp_path, [row], slice="heuristic"))
