"""`atelier new`: names that would make files which no command could use are refused before any is written."""

import ast
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from atelier.engine.config.error import ConfigError
from atelier.engine.config.project_roots import HERE, ProjectRoot, other_roots
from atelier.flows.run.new_files import write_new
from tests.projects import Make


def refused(what: str, name: str, told: str) -> None:
    before = sorted(Path.cwd().rglob("*"))
    with pytest.raises(ConfigError, match=told):
        write_new(what, name)
    assert sorted(Path.cwd().rglob("*")) == before


@pytest.mark.parametrize(
    ("what", "name", "told"),
    [
        ("model", "gpt_nano", r"conf/model/gpt_nano\.yaml exists already; choose another name"),
        ("flow", "base", r"conf/base\.yaml exists already; choose another name"),
        ("flow", "help", "help is a command"),
    ],
)
def test_a_part_whose_settings_have_a_name_that_is_taken_is_not_written(
    make_project: Make, monkeypatch: pytest.MonkeyPatch, what: str, name: str, told: str
) -> None:
    monkeypatch.chdir(make_project("mine"))
    refused(what, name, told)


@pytest.mark.parametrize(
    ("what", "name", "told"),
    [
        ("flow", "report", r"flows/report\.py would have two meanings of the name report; choose another"),
        ("flow", "encode", "two meanings of the name encode"),
        ("flow", "model", "two meanings of the name model"),
        ("flow", "dict", "two meanings of the name dict"),
        ("model", "model", r"engine/model/model\.py would have two meanings of the name Model"),
        ("objective", "field", "two meanings of the name Field"),
        ("task", "kept", r"tasks/kept\.py would have two meanings of the name kept"),
        ("task", "config", "two meanings of the name config"),
    ],
)
def test_a_name_that_the_example_uses_for_something_else_is_refused(
    make_project: Make, monkeypatch: pytest.MonkeyPatch, what: str, name: str, told: str
) -> None:
    monkeypatch.chdir(make_project("mine"))
    refused(what, name, told)


def test_other_names_are_written_as_files_of_python(
    make_project: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(make_project("mine"))
    for what in ("model", "objective", "flow", "task"):
        for path in write_new(what, f"a_{what}"):
            if path.suffix == ".py":
                ast.parse(path.read_text())


def test_a_project_with_the_name_of_an_importable_package_is_not_written(
    make_project: Make, tmp_path: Path
) -> None:
    refused("project", "numpy", r"numpy/__init__\.py is imported as numpy; choose another name")
    (tmp_path / "quiet").mkdir()
    assert write_new("project", "quiet")


def test_a_new_project_can_be_installed_editable_with_its_test_tools(
    make_project: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_project("mine")
    build = "import sys; from hatchling.build import build_editable; print(build_editable(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", build, str(tmp_path)], cwd=folder, capture_output=True, text=True
    )
    assert not done.returncode, done.stderr
    [wheel] = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
        about = next(name for name in archive.namelist() if name.endswith("/METADATA"))
        metadata = archive.read(about).decode()
    assert [path.name for path in site.iterdir() if path.suffix not in (".pth", ".dist-info")] == []
    assert not [
        line for path in site.glob("*.pth") for line in path.read_text().split() if Path(line).exists()
    ]
    assert "Provides-Extra: test" in metadata and "'test'" in metadata
    origin = {"url": folder.as_uri(), "dir_info": {"editable": True}}  # as pip writes it
    (site / about).with_name("direct_url.json").write_text(json.dumps(origin))
    monkeypatch.setenv(HERE, "")
    monkeypatch.syspath_prepend(str(site))
    assert other_roots() == (ProjectRoot("mine", folder),)


def test_the_written_readme_and_ci_install_what_they_use(make_project: Make) -> None:
    folder = make_project("mine")
    for file in ("README.md", ".github/workflows/check.yml"):
        text = (folder / file).read_text()
        assert text.index("pip install --editable '.[test]'") < text.index("python -m pytest")
