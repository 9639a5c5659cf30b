"""The core without extensions: a copy of the code with an empty folder of extensions."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkout import TOP

CODE = ("conf", "engine", "flows", "infra", "src", "tasks")


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("core")
    for name in CODE:
        shutil.copytree(TOP / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(TOP / "pyproject.toml", folder)
    shutil.rmtree(folder / "engine" / "extensions")
    return folder


def atelier(core: Path, store: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": f"{core / 'src'}{os.pathsep}{core}", "ATELIER_ROOT": str(store)}
    command = [sys.executable, "-m", "atelier", *words, "tracker=none"]
    return subprocess.run(command, env=env, cwd=core, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("flow", ["pretrain", "distill", "titan"])
def test_a_flow_that_uses_no_extension_runs_without_any(core: Path, tmp_path: Path, flow: str) -> None:
    done = atelier(core, tmp_path, flow, "experiment=tiny")
    assert done.returncode == 0, done.stderr[-3000:]
    assert list((tmp_path / "model").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("objective@roles.student_a.objective=replaced", "no objective of kind 'replaced'"),
        ("train.privacy.kind=record", "train.privacy"),
        ("parallel.assignment=static", "parallel.assignment: no such key"),
        ("parallel.tiers.experts=disk", "parallel.tiers: no such key"),
    ],
)
def test_what_an_extension_would_bring_is_refused_by_name(
    core: Path, tmp_path: Path, word: str, problem: str
) -> None:
    done = atelier(core, tmp_path, "plan", "distill", "experiment=tiny", word)
    assert done.returncode == 2 and problem in done.stderr, done.stderr


KEY = """
from atelier.engine.config.section import Section

class Toys(Section):
    \"\"\"How many toys there are.\"\"\"
    number: int = 0
"""
HOOK = """
from atelier.engine.loop.attachments import Attachment
from atelier.engine.loop.hooks import Hook

class Toy(Attachment):
    name = "toys"

    def __init__(self, number):
        self.number = number

    def summary(self, steps):
        return {"toys": {"number": self.number, "steps": steps}}

class Extension(Hook):
    def __init__(self, context):
        super().__init__(context)
        for member in context.members.values():
            member.attach(Toy(context.training.train.toys.number))
"""
REPORT = """
def foretold(train, *, rows=0):
    return f"{train.toys.number} toys are foretold"

def sentence(said):
    return f"{said['number']} toys in {said['steps']} steps"
"""


@pytest.mark.slow
def test_an_extension_with_a_key_changes_no_file_of_the_core(core: Path, tmp_path: Path) -> None:
    place = core / "engine" / "extensions" / "toy"
    (place / "config" / "train").mkdir(parents=True)
    for name, text in (("config/train/toys.py", KEY), ("hook.py", HOOK), ("report.py", REPORT)):
        (place / name).write_text(text)
    try:
        done = atelier(core, tmp_path, "pretrain", "experiment=tiny", "train.toys.number=3")
        assert done.returncode == 0, done.stderr[-3000:]
        assert "3 toys are foretold" in done.stdout + done.stderr
        (record,) = (tmp_path / "model").glob("*/record.json")
        toys = json.loads(record.read_text())["summary"]["toys"]
        assert toys["number"] == 3
        (report,) = (tmp_path / "report").glob("*/payload-*/report.md")
        assert f"3 toys in {toys['steps']} steps" in report.read_text()
    finally:
        shutil.rmtree(place)
