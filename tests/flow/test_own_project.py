"""A project outside the checkout, from `atelier new` to a changed model that is trained again."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.checkout import TOP, python_path
from tests.environments import installed_at

RUN = ("pretrain", "model=mine", "experiment=tiny")
MODULE = "engine/model/mine.py"

pytestmark = pytest.mark.slow


@dataclass
class Project:
    folder: Path
    store: Path

    def run(self, *words: str, module: str = "atelier", code: int = 0) -> str:
        """Standard output, for a failure also standard error, of a command in the project's folder."""
        kept = {key: value for key, value in os.environ.items() if key != "ATELIER_PROJECT"}
        done = subprocess.run(
            [sys.executable, "-m", module, *words], cwd=self.folder, capture_output=True, text=True,
            timeout=300, env=kept | {"PYTHONPATH": python_path(TOP), "ATELIER_ROOT": str(self.store)},
        )  # fmt: skip
        assert done.returncode == code and "Traceback" not in done.stderr, done.stderr + done.stdout
        return done.stderr + done.stdout if code else done.stdout

    def edit(self, file: str, old: str, new: str) -> None:
        path = self.folder / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    def rows(self) -> dict[str, dict[str, Any]]:
        return {row["name"]: row for row in json.loads(self.run("plan", *RUN, "--json"))["tasks"]}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A new project whose model is trained."""
    base = tmp_path_factory.mktemp("own")
    Project(base, base / "store").run("new", "project", "mine")
    made = Project(base / "mine", base / "store")
    made.run(*RUN)
    return made


def test_a_second_run_has_nothing_to_do_and_the_projects_own_test_passes(project: Project) -> None:
    assert "nothing to do" in project.run(*RUN)
    assert "1 passed" in project.run("-q", module="pytest")


def test_a_changed_model_is_trained_again_and_the_plan_names_file_and_function(project: Project) -> None:
    project.edit(MODULE, '"""The forward pass.', '"""Words.')
    assert project.rows()["train"]["state"] == "reuse"
    project.edit(MODULE, "F.gelu(", "F.relu(")
    row = project.rows()["train"]
    assert row["state"] == "run" and row["reasons"] == [{"source": f"mine/{MODULE} (MineBlock.forward)"}]
    assert "changed: mine/engine/model/mine.py (MineBlock.forward)" in project.run("plan", *RUN)
    assert "other code of kind mine" in project.run("generate", "model", "--prompt", "a", code=2)
    project.run(*RUN)
    assert {row["state"] for row in project.rows().values()} == {"reuse"}
    assert project.run("generate", "model", "--prompt", "a", "--max-tokens", "4")
    runs = [json.loads(path.read_text()) for path in project.store.glob("model/*/record.json")]
    assert len(runs) == 2


def test_a_second_model_is_one_command_and_no_file_is_replaced(project: Project) -> None:
    written = project.run("new", "model", "other")
    assert "conf/model/other.yaml" in written and "then     atelier pretrain model=other" in written
    row = project.run("plan", "pretrain", "model=other", "experiment=tiny")
    assert "train" in row
    (project.folder / "engine" / "config" / "model" / "other.py").unlink()
    refused = project.run("new", "model", "other", code=2)
    assert "exists already; choose another name" in refused
    assert not (project.folder / "engine" / "config" / "model" / "other.py").exists()


def test_a_new_objective_trains_and_its_test_passes(project: Project) -> None:
    project.run("new", "objective", "smooth")
    assert "loss" in project.run("pretrain", "objective=smooth", "model=gpt_nano", "experiment=tiny")
    project.run("-q", "tests/test_smooth.py", module="pytest")


def test_a_new_flow_with_a_new_task_runs_and_a_change_of_the_task_is_named(project: Project) -> None:
    written = project.run("new", "flow", "ours")
    assert "conf/ours.yaml" in written and "then     atelier ours experiment=tiny" in written
    project.run("new", "task", "shorten")
    flow, computed = "flows/ours.py", "engine/data/tasks/shorten.py"
    project.edit(flow, "    vocabulary = ", "    corpus = shorten(corpus, longest=20000)\n    vocabulary = ")
    project.edit(flow, "train_roles\n\n", "train_roles\n\nfrom mine.tasks.shorten import shorten\n\n")
    tests = ("tests/test_ours.py", "tests/test_shorten.py")
    assert "2 passed" in project.run("-q", *tests, module="pytest")
    project.run("ours", "experiment=tiny")
    assert "nothing to do" in project.run("ours", "experiment=tiny")
    records = [json.loads(path.read_text()) for path in project.store.glob("corpus/*/record.json")]
    [made] = [one for one in records if "code" in one["identity"]]
    assert made["summary"]["documents"] > 0 and made["summary"]["longer"] > 0
    [run_file] = [path for path in project.store.glob("scratch/*/*-shorten/run.json")]
    assert {f"mine/{computed}", "mine/tasks/shorten.py"} <= {*json.loads(run_file.read_text())["sources"]}
    project.edit(computed, "> config.longest", ">= config.longest")
    said = project.run("plan", "ours", "experiment=tiny")
    assert f"changed: mine/{computed} (kept)" in said and "its corpus.main changes" in said
    project.edit(computed, ">= config.longest", "> config.longest")
    assert "nothing to do" in project.run("ours", "experiment=tiny")


@pytest.mark.parametrize(
    ("what", "file", "old", "new"),
    [
        ("model", "engine/model/{}.py", "4 * D", "3 * D"),
        ("objective", "engine/objective/{}.py", "spec.smoothing", "0.2"),
        ("flow", "flows/{}.py", "    report(trained", "    # report(trained"),
        ("task", "engine/data/tasks/{}.py", "> config.longest", ">= config.longest"),
    ],
)
def test_the_test_of_a_new_part_fails_when_the_part_is_broken(
    project: Project, what: str, file: str, old: str, new: str
) -> None:
    name = f"a_{what}"
    project.run("new", what, name)
    test = ("-q", f"tests/test_{name}.py")
    assert "1 passed" in project.run(*test, module="pytest")
    project.edit(file.format(name), old, new)
    assert "1 failed" in project.run(*test, module="pytest", code=1)


def test_a_file_with_a_syntax_error_stops_only_what_needs_it(project: Project) -> None:
    project.edit(MODULE, "class MineBlock", "class = MineBlock")
    assert f"mine/{MODULE}:" in project.run("plan", *RUN, code=2)
    assert "mine" in project.run("list", "model")
    project.run("plan", "pretrain", "model=gpt_nano", "experiment=tiny")
    project.edit(MODULE, "class = MineBlock", "class MineBlock")


def test_it_works_with_atelier_from_its_wheel_and_as_a_wheel_itself(tmp_path: Path) -> None:
    python = str(installed_at(tmp_path / "env", "wheel"))
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "ATELIER_PROJECT")}
    env["ATELIER_ROOT"] = str(tmp_path / "store")

    def run(folder: Path, *words: str) -> str:
        done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(tmp_path, python, "-m", "atelier", "new", "project", "mine")
    run(tmp_path / "mine", python, "-m", "atelier", *RUN)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), "."]
    run(tmp_path / "mine", *pip, *build)
    [wheel] = map(str, tmp_path.glob("mine-*.whl"))
    run(tmp_path, *pip, "--python", str(tmp_path / "env"), "install", "--no-deps", wheel)
    again = run(tmp_path, python, "-m", "atelier", "plan", *RUN, "--json")
    assert {row["state"] for row in json.loads(again)["tasks"]} == {"reuse"}


FROZEN = """
import sys
from pathlib import Path

from atelier.infra.code.frozen import freeze
from atelier.infra.store.store import default_root

digest, path = freeze(default_root()), Path("engine/config/model/mine.py")
path.write_text(path.read_text() + "LIVE = True\\n")
for name in [name for name in sys.modules if name.split(".")[0] in ("atelier", "mine")]:
    del sys.modules[name]
from atelier.engine.config.registry import spec_class
from atelier.flows.deployments import entry

assert vars(sys.modules[spec_class("model", "mine").__module__]).get("LIVE")
print(entry.use_code(digest) or "thawed")
from atelier.engine.config.registry import ModelSpec, spec_class

found = spec_class("model", "mine")
print(issubclass(found, ModelSpec), vars(sys.modules[found.__module__]).get("LIVE"))
"""


def test_a_worker_that_has_read_the_live_code_of_a_project_uses_what_was_frozen(project: Project) -> None:
    path = project.folder / "engine" / "config" / "model" / "mine.py"
    text = path.read_text()
    (project.folder / "frozen.py").write_text(FROZEN)
    try:
        assert project.run("frozen", module="frozen").split("\n")[:2] == ["thawed", "True None"]
    finally:
        path.write_text(text)
        (project.folder / "frozen.py").unlink()
