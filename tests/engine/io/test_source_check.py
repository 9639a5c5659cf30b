"""A supervisor's ranks compute with the code of their order, or not at all."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from atelier.engine.config.error import ConfigError
from atelier.engine.io import source_check


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of one module, loaded, in a supervised process."""
    path = tmp_path / "engine" / "some.py"
    path.parent.mkdir()
    path.write_text("x = 1\n")
    module = ModuleType("atelier.engine.some")
    module.__file__ = str(path)
    monkeypatch.setitem(sys.modules, "atelier.engine.some", module)
    monkeypatch.setattr(source_check, "PROJECT", tmp_path)
    monkeypatch.setattr(source_check, "_loaded", {})
    monkeypatch.setenv(source_check.SUPERVISED, "3")
    return path


def test_a_file_that_changed_after_the_order_is_refused(file: Path) -> None:
    wanted = {"engine/some.py": source_check.source_digest(file.read_bytes())}
    source_check.check_sources(wanted)
    file.write_text("x = 2\n")
    with pytest.raises(ConfigError, match=r"engine/some\.py: changed during this run"):
        source_check.check_sources(wanted)
    file.unlink()
    with pytest.raises(ConfigError, match="changed"):
        source_check.check_sources(wanted)


def test_what_is_wanted_is_imported_before_it_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a file that is imported later could be another one by then."""
    path = tmp_path / "wanted_first" / "kind.py"
    path.parent.mkdir()
    path.write_text("def f(): return 1\n")
    wanted = {"wanted_first/kind.py": source_check.source_digest(path.read_bytes())}
    monkeypatch.setattr(source_check, "PROJECT", tmp_path)
    monkeypatch.setattr(source_check, "module_of", lambda file: "wanted_first.kind")
    monkeypatch.setenv(source_check.SUPERVISED, "3")
    monkeypatch.syspath_prepend(tmp_path)
    source_check.check_sources(wanted)
    path.write_text("def f(): return 2\n")
    assert importlib.import_module("wanted_first.kind").f() == 1


def test_a_process_that_loaded_the_file_before_it_changed_goes_on(file: Path) -> None:
    wanted = {"engine/some.py": source_check.source_digest(file.read_bytes())}
    source_check.remember_sources()
    file.write_text("x = 2\n")
    source_check.check_sources(wanted)
    with pytest.raises(ConfigError):
        source_check.check_sources(
            {"engine/some.py": source_check.source_digest(b"x = 2\n")}
        )  # ordered with what it does not hold


def test_a_run_file_that_a_person_starts_by_hand_is_not_refused(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(source_check.SUPERVISED)
    source_check.check_sources({"engine/some.py": "0" * 16})
