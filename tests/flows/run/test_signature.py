"""Parameters of a project's flow: ordinary Python is read, and the rest is refused with file and line."""

from pathlib import Path

import pytest

from atelier.engine.config.error import ConfigError
from atelier.flows.deployments.form_fields import fields_of
from atelier.flows.run import catalog
from atelier.flows.run.catalog import parameters
from atelier.flows.run.compose import compose
from atelier.flows.run.new_files import write_new
from tests.projects import CACHED, Make, edit


@pytest.fixture
def project(make_project: Make) -> Path:
    folder = make_project("mine")
    write_new("flow", "ours")
    read_again()
    return folder


def read_again() -> None:
    """Forget what was read of the project, as a new process would."""
    for cached in CACHED:
        cached.cache_clear()


def write(folder: Path, head: str, parameter: str) -> None:
    """Put lines and one more parameter into the flow."""
    flow = folder / "flows" / "ours.py"
    edit(flow, "\n\ndef ours(", f"\n{head}\n\ndef ours(")
    edit(flow, "    score: Score,\n", f"    score: Score,\n    {parameter},\n")
    read_again()


@pytest.mark.parametrize(
    ("head", "parameter", "default"),
    [
        ("from typing import Literal", 'mode: Literal["a", "b"] = "a"', "a"),
        ("import typing as t", 'mode: t.Literal["a", "b"] = "a"', "a"),
        ("from typing import Literal\nMode = Literal['a', 'b']", "mode: Mode = 'b'", "b"),
        ("from collections.abc import Sequence", "mode: Sequence[str] = ('a',)", ("a",)),
        ("LIMIT = 20", "mode: int = LIMIT", 20),
        ("LIMIT: int = 20 * 2", "mode: int = LIMIT", 40),
        ("", "mode: 'int' = 3", 3),
        ("", "*, mode: int = 3", 3),
    ],
)
def test_types_constants_and_keyword_only_parameters_are_read(
    project: Path, head: str, parameter: str, default: object
) -> None:
    write(project, head, parameter)
    assert parameters("ours").model_fields["mode"].default == default


def test_a_literal_is_a_key_that_is_checked_and_a_field_of_the_form(project: Path) -> None:
    write(project, "from typing import Literal", '*, mode: Literal["a", "b"] = "a"')
    with (project / "conf" / "ours.yaml").open("a") as file:
        file.write("mode: a\n")
    assert compose("ours", ["experiment=tiny", "mode=b"]).call()["mode"] == "b"
    with pytest.raises(ConfigError, match="mode"):
        compose("ours", ["experiment=tiny", "mode=c"])
    assert fields_of("ours")["mode"].schema.get("enum") == ["a", "b"]


@pytest.mark.parametrize(
    ("head", "parameter", "told"),
    [
        ("from mine.engine.config.nope import Nope", "mode: Nope", r":\d+: from mine\..*ModuleNotFoundError"),
        (
            "from mine.engine.config.bad import Bad",
            "mode: Bad",
            r":\d+: .*mine/engine/config/bad\.py:2: Zero",
        ),
        ("from mine.engine.config.cut import Cut", "mode: Cut", r":\d+: .*mine/engine/config/cut\.py:1: "),
        ("from mine.engine.config.model.mine import No", "mode: No", r":\d+: .*has no attribute 'No'"),
        (
            "import numpy as np",
            "mode: np.ndarray",
            r":\d+: the parameter mode: np\.ndarray .*use a plain type",
        ),
        ("", "mode: int = sum(prices)", r":\d+: the parameter mode: int.*use a plain type"),
        ("class Own: pass", "mode: Own = Own()", r":\d+: the parameter mode: Own .*engine/config/"),
        ("", "_mode: int = 1", r":\d+: the parameters .*are not all keys"),
        ("", "copy: int = 1", r": the parameter copy cannot be a key; rename it"),
        ("import typing", "mode: typing.ClassVar[int] = 1", r": the parameter mode cannot be a key; use"),
        ("", "*words", r":\d+: the parameters .*are not all keys"),
        ("", "/", r":\d+: the parameters .*are not all keys"),
        ("x = '\0'", "mode: int = 1", r":1: source code string cannot contain null bytes; correct it"),
    ],
)
def test_other_parameters_are_refused_with_file_and_line(
    project: Path, head: str, parameter: str, told: str
) -> None:
    (project / "engine" / "config" / "bad.py").write_text("\n1 / 0\n")
    (project / "engine" / "config" / "cut.py").write_text("class = 1\n")
    write(project, head, parameter)
    with pytest.raises(ConfigError, match=rf"^mine/flows/ours\.py{told}"):
        parameters("ours")


def test_a_flow_file_that_is_not_utf_8_is_still_listed(project: Path) -> None:
    path = project / "flows" / "ours.py"
    path.write_bytes(path.read_bytes().replace(b"learn a", b"l\xe9arn a", 1))
    assert catalog.flow_text("ours")[0].startswith("l\ufffdarn a tokenizer")
    with pytest.raises(ConfigError, match=r"^mine/flows/ours\.py:\d+: "):
        parameters("ours")
