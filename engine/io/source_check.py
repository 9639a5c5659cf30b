"""Check that this process runs the code that it was started for: source files unchanged since import.
Torch-free.
"""

import importlib
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from atelier import PROJECT
from atelier.engine.config.error import ConfigError
from atelier.engine.config.project_roots import located, module_of
from atelier.engine.config.syntax import source_digest as source_digest

TASKS = "tasks"  # the folder of a root whose files only flows import
SUPERVISED = "ATELIER_GUARD_FD"  # environment variable of processes started by a supervisor

_loaded: dict[str, str] = {}


def remember_sources() -> None:
    """Record the digests of all loaded modules of the project, for a process that forks later, when files may
    have changed.
    """
    for name, module in list(sys.modules.items()):
        path = Path(getattr(module, "__file__", None) or "/")
        if name.startswith("atelier.engine") and path.is_relative_to(PROJECT) and path.suffix == ".py":
            with suppress(OSError):
                _loaded[str(path.relative_to(PROJECT))] = source_digest(path.read_bytes())


def check_sources(wanted: Mapping[str, str]) -> None:
    """Import the `wanted` files that the engine imports, so that none changes between check and use, then
    raise ConfigError if a supervised process has other code: one run would mix two versions. A process
    started by hand runs any code.
    """
    if SUPERVISED not in os.environ:
        return
    for file in (file for file in wanted if file.split("/")[1] != TASKS):
        with suppress(Exception):  # import errors are reported below, or at use
            importlib.import_module(module_of(file))
    for file, expected in wanted.items():
        if _now(file) != expected:
            raise ConfigError(
                file, "changed during this run", "run the same command again: it resumes from its checkpoint"
            )


def _now(file: str) -> str:
    if file not in _loaded:
        try:
            return source_digest(located(file, PROJECT).read_bytes())
        except OSError:
            return ""
    return _loaded[file]
