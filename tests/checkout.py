"""This checkout: its path, the environment to import it and its tests, and copies of it."""

import os
import shutil
import subprocess
import sys
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


def installed_at(folder: Path, kind: str) -> Path:
    """The interpreter of an environment with nothing in it but Atelier, as a wheel or editable; the libraries
    are this environment's, by a path.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (site / "libraries.pth").write_text("\n".join(p for p in sys.path if "site-packages" in p) + "\n")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    if kind == "wheel":
        wheels = folder / "wheels"
        build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), str(TOP)]
        subprocess.run(build, check=True)
        (what,) = map(str, wheels.glob("*.whl"))
    else:
        what = f"--editable={TOP}"
    install = [*pip, "--python", str(folder), "install", "--no-deps", "--no-build-isolation", what]
    subprocess.run(install, check=True)
    return folder / "bin" / "python"
