"""Wheels of this checkout, and environments to install them in: an empty one, and one with all libraries of
this environment but torch.
"""

import os
import subprocess
import sys
from pathlib import Path

from tests.checkout import TOP

TORCH = ("torch", "functorch")  # first letters of what the distribution brings, and of what needs it
OWN = ("_atelier_lm", "atelier_lm")  # the editable install of this checkout


def built(kind: str, folder: Path, top: Path = TOP) -> Path:
    """The `wheel` or `sdist` of the sources at `top`, in `folder`."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    environment = {key: value for key, value in os.environ.items() if key != "SOURCE_DATE_EPOCH"}
    subprocess.run(command, cwd=top, env=environment, check=True, capture_output=True)
    (found,) = folder.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return found


def wheel(folder: Path, top: Path = TOP) -> Path:
    return built("wheel", folder, top)


def site_of(environment: Path) -> Path:
    """The folder of its libraries."""
    return environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def bare_environment(folder: Path) -> Path:
    """Make a virtual environment without any library at `folder`; returns its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder / "bin" / "python"


def without_torch(folder: Path) -> Path:
    """Make an environment at `folder` with links to all libraries of this one but torch and Atelier; returns
    its interpreter.
    """
    python = bare_environment(folder)
    for place in map(Path, (p for p in sys.path if "site-packages" in p)):
        for entry in place.iterdir():
            link = site_of(folder) / entry.name
            if not entry.name.startswith((*TORCH, *OWN)) and not link.exists():
                link.symlink_to(entry)
    return python


def install(environment: Path, what: str) -> None:
    """Install Atelier alone, without its libraries."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", environment]
    subprocess.run([*pip, "install", "--no-deps", "--no-build-isolation", what], check=True)


def installed_at(folder: Path, kind: str) -> Path:
    """The interpreter of an environment with nothing in it but Atelier, as a wheel or editable; the libraries
    are this environment's, by a path.
    """
    python = bare_environment(folder)
    libraries = "\n".join(p for p in sys.path if "site-packages" in p)
    (site_of(folder) / "libraries.pth").write_text(f"{libraries}\n")
    install(folder, str(wheel(folder / "wheels")) if kind == "wheel" else f"--editable={TOP}")
    return python
