"""Code that was only moved and renamed counts as the same; other changes are named."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from atelier.infra.code import code_change, code_map
from atelier.infra.code.code_change import changed, files_of
from tests.checkout import TOP

MADE_BEFORE = Path(__file__).with_name("map_before_the_move.json")  # of a training that was stopped half done
BEFORE = {
    "engine/spec/rows.py": ["aaaaaaa1", "engine/config/rows.py"],
    "engine/data/a.py": ["aaaaaaa2", "engine/data/both.py"],
    "engine/data/b.py": ["aaaaaaa3", "engine/data/both.py"],
    "engine/model/gpt.py": ["aaaaaaa4", "engine/model/gpt.py", "engine/model/layers.py"],
    "engine/data/kept.py": ["aaaaaaa5", "engine/data/kept.py"],
    "engine/data/plumbing.py": ["aaaaaaa6"],  # belongs to no map any more
}
AFTER = {
    "engine/config/rows.py": "bbbbbbb1",
    "engine/data/both.py": "bbbbbbb2",
    "engine/model/gpt.py": "bbbbbbb3",
    "engine/model/layers.py": "bbbbbbb4",
    "engine/data/kept.py": "aaaaaaa5",
    "engine/data/reached_by_merging.py": "bbbbbbb5",
}
OLD = {file: entry[0] for file, entry in BEFORE.items()}


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(code_change, "_table", lambda: (BEFORE, AFTER))
    yield


@pytest.mark.parametrize("left_out", [*BEFORE, ""])
def test_a_map_of_files_as_they_were_is_the_map_of_those_that_they_became(table: None, left_out: str) -> None:
    old = {file: digest for file, digest in OLD.items() if file != left_out}
    assert changed(old, AFTER) == []


@pytest.mark.parametrize(
    "file, named",
    [
        ("engine/data/a.py", ["engine/data/both.py"]),
        ("engine/spec/rows.py", ["engine/config/rows.py"]),
        ("engine/model/gpt.py", ["engine/model/gpt.py", "engine/model/layers.py"]),
        ("engine/data/plumbing.py", ["engine/data/plumbing.py (gone)"]),
    ],
)
def test_a_file_that_was_another_before_the_move_is_named_by_what_it_became(
    table: None, file: str, named: list[str]
) -> None:
    assert changed(OLD | {file: "cccccccc"}, AFTER) == named


@pytest.mark.parametrize("file", AFTER)
def test_a_file_that_was_changed_after_the_move_is_named(table: None, file: str) -> None:
    assert changed(OLD, AFTER | {file: "cccccccc"}) == [file]


def test_a_file_that_was_added_after_the_move_is_new(table: None) -> None:
    assert changed(OLD, AFTER | {"engine/data/later.py": "cccccccc"}) == ["engine/data/later.py (new)"]


def test_a_map_made_after_the_move_is_compared_as_it_stands(table: None) -> None:
    made = AFTER | {"engine/data/kept.py": "dddddddd"}
    assert changed(made, AFTER) == ["engine/data/kept.py"] and changed(AFTER, AFTER) == []
    gone = {file: digest for file, digest in AFTER.items() if file != "engine/data/both.py"}
    assert changed(AFTER, gone) == ["engine/data/both.py (gone)"]


@pytest.mark.parametrize("form", [dict, files_of], ids=["of a trajectory", "of a record"])
def test_a_training_that_was_begun_before_the_move_names_only_what_was_changed_since(form: Any) -> None:
    """The map is a real one; what has changed since is what differs from the table."""
    made = json.loads(MADE_BEFORE.read_bytes())
    before, after = code_change._table()
    targets = {target for file in made for target in before[file][1:]}
    assert (
        all(digest == before[file][0] for file, digest in files_of(made).items()) and targets <= after.keys()
    )
    # what is gone since is named where it was imported
    here = [file for file in sorted(targets) if (TOP / file).exists()]
    now = {file: code_map.code_map((file,), ())[file] for file in here}
    differing = {file for file, digest in files_of(now).items() if digest != after[file]}
    assert {line.split(" (")[0] for line in changed(form(made), form(now))} == differing
