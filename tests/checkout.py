"""This checkout: its path, the environment to import it and its tests, and copies of it."""

import os
import shutil
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
PARTS = ("src", "engine", "infra", "tasks", "flows", "conf")


def python_path(top: Path = TOP) -> str:
    """PYTHONPATH with which `atelier` and `tests` are those of the checkout at `top`."""
    return f"{top / 'src'}{os.pathsep}{top}"


def copied(target: Path) -> Path:
    """The code of this checkout once more, at `target`, as it is and compiled."""
    for part in PARTS:
        shutil.copytree(TOP / part, target / part)
    return target
