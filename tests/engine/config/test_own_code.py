"""What of a project's code is in identity, and what compares it."""

import os
from pathlib import Path
from typing import cast

import pytest

from atelier.engine.config import own_code, project_roots
from atelier.engine.config.error import ConfigError
from atelier.engine.config.project_roots import HERE, other_roots, use_roots
from atelier.engine.config.registry import ModelSpec, check_code, spec_class
from atelier.engine.io import source_check
from atelier.infra.code import code_map
from tests.projects import CACHED, Make, edit

MODULE = "engine/model/near.py"
ROUTER = """from typing import Literal

from atelier.engine.config.router.hash import Hash


class MyHash(Hash):
    kind: Literal["myhash"] = "myhash"
"""
SIZES = {"num_layers": 1, "hidden": 16, "num_heads": 2, "vocab": 320}


@pytest.fixture
def project(make_project: Make) -> Path:
    return make_project("near")


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def spec_of(kind: str, **more: object) -> ModelSpec:
    return cast(ModelSpec, spec_class("model", kind).model_validate({"kind": kind, **SIZES, **more}))


def code_now() -> own_code.Code:
    for cached in CACHED:
        cached.cache_clear()
    return own_code.code_of(spec_class("model", "near"))


def test_packages_above_an_imported_module_count_and_come_before_modules_of_their_name(project: Path) -> None:
    edit(
        project / MODULE,
        "Shared = ",
        "from near.engine.pack.a import Z\nfrom near.engine.two import W\n\nShared = ",
    )
    write(project / "engine/pack/a.py", "Z = 1\n")
    write(project / "engine/pack/__init__.py", "import near.engine.scale\n")
    write(project / "engine/scale.py", "SCALE = 1\n")
    write(project / "engine/two.py", "W = 1\n")
    write(project / "engine/two/__init__.py", "W = 2\n")
    assert {file.removeprefix("near/engine/") for file in code_now()} == {
        "config/model/near.py", "model/near.py", "pack/a.py", "pack/__init__.py", "scale.py",
        "two/__init__.py"
    }  # fmt: skip


def test_code_that_would_not_travel_with_its_project_is_refused(project: Path) -> None:
    write(project / "lib/helpers.py", "X = 1\n")
    edit(project / MODULE, "Shared = ", "from near.lib.helpers import X\n\nShared = ")
    with pytest.raises(ConfigError, match=r"near/lib/helpers\.py: .*move it below engine/"):
        code_now()


def test_a_file_that_changes_after_the_plan_stops_the_gang_and_a_notebook(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = {file: digest for file, digest in own_code.files_of_code().items() if file.startswith("near/")}
    assert not wanted
    code_now()
    wanted = {file: digest for file, digest in own_code.files_of_code().items() if file.startswith("near/")}
    assert set(wanted) == {"near/engine/config/model/near.py", f"near/{MODULE}"}
    monkeypatch.setenv(source_check.SUPERVISED, "3")
    monkeypatch.setattr(code_map, "_read", {})  # files of other tests
    source_check.check_sources(wanted)
    code_map.check_unread_changes()
    edit(project / MODULE, "F.gelu(", "F.relu(")
    with pytest.raises(ConfigError, match=rf"near/{MODULE}: changed during this run"):
        source_check.check_sources(wanted)
    with pytest.raises(ConfigError, match="was changed since this process read it"):
        code_map.check_unread_changes()


def test_the_code_of_a_projects_router_is_that_of_the_model(project: Path) -> None:
    path = project / "engine/config/router/myhash.py"
    write(path, ROUTER)
    write(project / "engine/model/router/myhash.py", "from atelier.engine.model.router.hash import build\n")
    code_now()
    experts = {"router": {"kind": "myhash"}}
    spec = spec_of("gpt", num_experts=4, experts=experts)
    [(place, code)] = own_code.codes_in(spec.as_identity())
    assert place == ".experts.router" and set(cast(dict[str, object], code)) == {
        "near/engine/config/router/myhash.py", "near/engine/model/router/myhash.py"
    }  # fmt: skip
    made = spec.arguments()["code"]
    check_code(made, spec, "model", "it")
    edit(path, "class MyHash", "SALT = 3\n\n\nclass MyHash")
    code_now()
    with pytest.raises(ConfigError, match=r"other code of kind gpt, in one of its files: .*myhash\.py"):
        check_code(made, spec_of("gpt", num_experts=4, experts=experts), "model", "it")


def test_rows_in_another_project_count(make_project: Make, tmp_path: Path) -> None:
    first, second = make_project("ra"), make_project("rb")
    write(first / "engine/config/objective/smooth.py", "from typing import ClassVar, Literal\n\n"
          "from atelier.engine.config.registry import ObjectiveSpec\n\n\nclass Smooth(ObjectiveSpec):\n"
          '    reads: ClassVar[str] = "myrows"\n    kind: Literal["smooth"] = "smooth"\n')  # fmt: skip
    write(second / "engine/data/datasets/myrows.py", "ROWS = 1\n")
    use_roots([("ra", str(first)), ("rb", str(second))])
    for cached in CACHED:
        cached.cache_clear()
    assert set(own_code.code_of(spec_class("objective", "smooth"))) == {
        "ra/engine/config/objective/smooth.py", "rb/engine/data/datasets/myrows.py"
    }  # fmt: skip


def test_a_link_to_ones_own_file_does_not_make_another_users_folder_ones_own(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.lstat

    def lstat(path: Path) -> os.stat_result:
        found = real(path)
        return os.stat_result([*found[:4], 4242, *found[5:10]]) if path == project else found

    monkeypatch.delenv(HERE)
    monkeypatch.chdir(project)
    monkeypatch.setattr(project_roots, "ROOT", -1)
    assert other_roots()
    monkeypatch.delenv(HERE)
    monkeypatch.setattr(Path, "lstat", lstat)
    project_roots._found.cache_clear()
    with pytest.raises(ConfigError, match="belongs to another user"):
        other_roots()


def test_a_frozen_copy_of_an_installed_package_can_be_used_beside_it(
    tmp_path: Path, make_project: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_project("packed")
    write(tmp_path / "site/packed/__init__.py", "")
    monkeypatch.syspath_prepend(tmp_path / "site")
    with pytest.raises(ConfigError, match="is imported by that name"):
        other_roots()
    use_roots([("packed", str(folder))])
    assert [root.folder for root in other_roots()] == [folder]
