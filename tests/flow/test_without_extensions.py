"""The core without any extension: a copy of the code whose folder of extensions is empty."""

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
    ],
)
def test_what_an_extension_would_bring_is_refused_by_name(
    core: Path, tmp_path: Path, word: str, problem: str
) -> None:
    done = atelier(core, tmp_path, "plan", "distill", "experiment=tiny", word)
    assert done.returncode == 2 and problem in done.stderr, done.stderr
