"""A code map changes with the meaning of code, not with its form or place."""

from pathlib import Path

import pytest

from atelier.engine.config.base import parse
from atelier.engine.config.error import ConfigError
from atelier.engine.config.role import Role
from atelier.infra.code import code_map
from atelier.infra.code.code_change import Map, changed, digest_of, files_of
from atelier.infra.code.code_map import ROOTS, sources_of, training_map

LOOP = '''"""Words."""

import os
from atelier.engine.model.load import build
from atelier.engine.parallel.grid import Grid
from atelier.engine.objective.lm import LM

LIMIT = 3  # a number


class Loop:
    """A loop."""

    step: int = 0

    def run(self) -> int:
        """Run."""
        return helped(self.step)


def helped(step: int) -> int:
    return step + LIMIT
'''


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    files = {
        code_map.LOOP: LOOP,
        "engine/model/load.py": "def build(): ...\n",
        "engine/model/gpt.py": "from atelier.engine.model.layers import Norm\n\nclass GPT: ...\n",
        "engine/model/layers.py": "class Norm: ...\n",
        "engine/model/ernie.py": "class Ernie: ...\n",
        "engine/parallel/grid.py": "from atelier.engine.only_by_grid import x\n\nclass Grid: ...\n",
        "engine/only_by_grid.py": "x = 1\n",
        "engine/objective/lm.py": "class LM: ...\n",
        "engine/objective/logits.py": "class Logits: ...\n",
        "engine/optim/adamw.py": "class AdamW: ...\n",
        "engine/config/model/gpt.py": "class Spec: ...\n",
        "engine/config/mixture.py": "def streams(): ...\n",
    }
    for name, text in files.items():
        place = tmp_path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def mapped(project: Path, objective: str = "lm") -> Map:
    code_map._read.clear()  # as a new process
    code_map._code_map.cache_clear()
    shape = {"kind": "gpt", "num_layers": 1, "hidden": 16, "num_heads": 2}
    objectives = {"lm": {"kind": "lm"}} | ({"kd": {"kind": "logits"}} if objective == "logits" else {})
    document = {"model": shape, "objective": objectives, "optim": {"kind": "adamw", "lr": 1e-3}}
    teacher = {"teacher": "teacher"} if objective == "logits" else {}
    roles = {
        "teacher": parse(Role, document | {"objective": {"lm": {"kind": "lm"}}}, ""),
        "model": parse(Role, document | teacher, ""),
    }
    return training_map("train", roles, "model", project)


def edit(project: Path, file: str, old: str, new: str) -> list[str]:
    """What an edit changes in the map."""
    before = mapped(project)
    path = project / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    after = mapped(project)
    assert (digest_of(before) == digest_of(after)) == (not changed(before, after))
    named = [name.split(" (")[0] for name in changed(before, after)]
    assert named == [name.split(" (")[0] for name in changed(files_of(before), files_of(after))]
    return changed(before, after)


def test_it_holds_what_the_loop_and_the_kinds_reach(project: Path) -> None:
    assert set(mapped(project)) == {
        code_map.LOOP, "engine/model/load.py", "engine/model/gpt.py", "engine/model/layers.py",
        "engine/objective/lm.py", "engine/optim/adamw.py", "engine/config/mixture.py",
        "engine/config/model/gpt.py",
    }  # fmt: skip
    assert "engine/objective/logits.py" in mapped(project, "logits")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""Words."""', '"""Others."""'),
        ('    """A loop."""\n', ""),
        ("  # a number", ""),
        ("return step + LIMIT", "return (step\n            + LIMIT)"),
        (
            "import os\nfrom atelier.engine.model.load import build\n",
            "from atelier.engine.model.load import build\nimport os\n",
        ),
    ],
)
def test_what_only_reads_otherwise_is_the_same_code(project: Path, old: str, new: str) -> None:
    assert edit(project, code_map.LOOP, old, new) == []


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("step + LIMIT", "step - LIMIT", " (helped)"),
        ("return helped(self.step)", "return helped(1)", " (Loop.run)"),
        ("step: int = 0", "step: int = 1", " (Loop)"),
        ("LIMIT = 3", "LIMIT = 4", ""),
        (
            "from atelier.engine.model.load import build",
            "from atelier.engine.model.load import other as build",
            "",
        ),
    ],
)
def test_what_means_something_else_is_named(project: Path, old: str, new: str, named: str) -> None:
    assert edit(project, code_map.LOOP, old, new) == [f"{code_map.LOOP}{named}"]


@pytest.mark.parametrize(
    "file", ["engine/model/ernie.py", "engine/parallel/grid.py", "engine/only_by_grid.py"]
)
def test_what_the_training_does_not_depend_on_is_not_in_it(project: Path, file: str) -> None:
    old = (project / file).read_text().splitlines()[-1]
    assert edit(project, file, old, f"{old}\nVALUE = 1") == []


def test_files_that_come_and_go_are_named(project: Path) -> None:
    assert edit(project, "engine/model/gpt.py", "from atelier.engine.model.layers import Norm\n", "") == [
        "engine/model/gpt.py", "engine/model/layers.py (gone)",
    ]  # fmt: skip


def test_files_beside_and_packages_count_too(project: Path) -> None:
    kind = project / "engine/model/gpt.py"
    kind.write_text("from .mine import tables\nfrom . import own\n" + kind.read_text())
    (project / "engine/model/mine").mkdir()
    files = [f"engine/model/{name}" for name in ("mine/__init__.py", "mine/tables.py", "own.py")]
    for file in files:
        (project / file).write_text("VALUE = 1\n")
    assert set(files) <= set(mapped(project))
    assert edit(project, "engine/model/mine/tables.py", "1", "2") == ["engine/model/mine/tables.py"]


def test_a_file_that_cannot_be_read_is_named_with_its_line(project: Path) -> None:
    (project / "engine/model/gpt.py").write_text("class GPT:\n    def f(\n")
    with pytest.raises(ConfigError, match=r"engine/model/gpt\.py:2: '\(' was never closed; correct it"):
        mapped(project)


def test_a_process_that_goes_on_after_its_code_was_changed_is_told(project: Path) -> None:
    mapped(project)
    code_map.check_unread_changes()
    (project / "engine/model/gpt.py").write_text("class GPT: ...\n")
    with pytest.raises(ConfigError, match=r"engine/model/gpt\.py: was changed since this process read it"):
        code_map.check_unread_changes()
    code_map._read.clear()


def test_what_is_raised_to_decide_counts_with_what_it_carries(project: Path) -> None:
    (project / code_map.LOOP).write_text(LOOP + "\n\ndef decide(n):\n    raise RolledBack(n + 1)\n")
    assert edit(project, code_map.LOOP, "n + 1", "n + 2") == [f"{code_map.LOOP} (decide)"]
    (project / code_map.LOOP).write_text(LOOP + '\n\ndef f():\n    return plot(title="a")\n')
    assert edit(project, code_map.LOOP, '"a"', '"b"') == [f"{code_map.LOOP} (f)"]


def test_a_damaged_cache_costs_only_time(project: Path) -> None:
    before = mapped(project)
    for path in (project / "cache" / "atelier").iterdir():
        path.write_text('{"half": ')
    assert mapped(project) == before
    assert set(sources_of({"model": before}, project)) == set(before)


def test_every_task_that_the_engine_does_has_a_root_that_is_there() -> None:
    for task, roots in ROOTS.items():
        assert (code_map.PROJECT / "tasks" / f"{task}.py").exists()
        assert all((code_map.PROJECT / root).exists() for root in roots)
    assert all((code_map.PROJECT / place).exists() for place in code_map.LEFT_OUT)


def test_words_that_a_person_reads_mean_nothing(project: Path) -> None:
    file = project / code_map.LOOP
    file.write_text(
        LOOP + '\n\nSIZE = Field(1, description="one")\n\n\ndef refuse():\n    raise Error("a", f"b {1}")\n'
    )
    assert edit(project, code_map.LOOP, 'description="one"', 'description="1"') == []
    assert edit(project, code_map.LOOP, '"a", f"b {1}"', '"other words"') == []
    assert edit(project, code_map.LOOP, "raise Error(", "raise OtherError(") == [f"{code_map.LOOP} (refuse)"]
    assert edit(project, code_map.LOOP, "Field(1,", "Field(2,") == [code_map.LOOP]
