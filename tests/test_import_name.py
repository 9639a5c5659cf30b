"""One module, one name: the folders at the top of a checkout are parts of `atelier` and nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest

from atelier import IMPORT_ROOT, PROJECT
from tests.checkout import TOP

FOLDERS = ("engine", "infra", "tasks", "flows")


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_cannot_be_imported_under_its_own_name(folder: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import {folder}"], cwd=TOP, capture_output=True, text=True, check=False
    )
    assert done.returncode and f"{folder} is part of atelier: import atelier.{folder}" in done.stderr


def test_every_module_of_the_checkout_has_one_name() -> None:
    """No two of the loaded modules come from one file, whatever was imported before this test; MLflow loads
    a copy of the predictor by its file.
    """
    names: dict[str, set[str]] = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        if (
            file.startswith(str(TOP))
            and "site-packages" not in file
            and name.rpartition(".")[2] in (Path(file).stem, Path(file).parent.name)
        ):
            names.setdefault(file, set()).add(name)
    assert names and {file: found for file, found in names.items() if len(found) > 1} == {}
    assert PROJECT == TOP and IMPORT_ROOT == TOP / "src"


HOSTILE = """
import sys
raise SystemExit("a user's own module was imported: " + __name__)
"""


@pytest.mark.parametrize("words", [("--help",), ("list",), ("plan", "pretrain", "experiment=tiny")])
def test_a_project_with_folders_of_the_same_names_disturbs_nothing(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    for folder in (*FOLDERS, "conf", "tests", "atelier_"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text(HOSTILE)
    for file in ("engine.py", "infra.py", "tasks.py", "flows.py"):
        (tmp_path / file).write_text(HOSTILE)
    done = subprocess.run(
        [sys.executable, "-m", "atelier", *words],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": str(IMPORT_ROOT),
             "ATELIER_ROOT": str(tmp_path / "store")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
