"""`atelier files`: the files that a cluster's servers are started from, as a folder that they work in."""

import json
import shutil
from argparse import Namespace
from pathlib import Path
from typing import TypedDict

from atelier import IMPORT_ROOT, PROJECT
from atelier.engine.config.error import ConfigError, printable
from atelier.infra.code.frozen import FOLDERS
from atelier.infra.code.provenance import code_provenance

AT_TOP = ("docker-compose.yml", ".env.example", ".dockerignore", "pyproject.toml", "constraints.txt")
SHOWN = ("docker-compose.yml", "infra/docker/*", "infra/k8s/*", "constraints.txt")
FOR_TESTS = ("verify",)  # tests of a checkout
PLUGINS = "hydra_plugins"


class ServerFiles(TypedDict):
    """Output of `atelier files --json`: the folder, and the paths of files in it that a user calls."""

    folder: str
    files: list[str]


def run(options: Namespace) -> int:
    """Write the files into a folder, or without one say where they are. Returns the exit code."""
    folder = Path(options.folder) if options.folder else PROJECT
    if options.folder:
        write(folder)
    there = [path for name in SHOWN for path in folder.glob(name) if path.is_file()]
    names = [path.relative_to(folder).as_posix() for path in there if path.name not in FOR_TESTS]
    found: ServerFiles = {"folder": str(folder.absolute()), "files": sorted(names)}
    if options.json:
        print(json.dumps(found, indent=1))
        return 0
    print(printable(f"in {found['folder']}:", 0))
    print("\n".join(f"  {name}" for name in found["files"]))
    if options.folder:
        print(
            printable(f"next      cd {options.folder} && infra/docker/secrets    (docs/operate/docker.md)", 0)
        )
    else:
        print("next      atelier files <folder>    (a folder of your own, in which the docs' commands work)")
    return 0


def write(folder: Path) -> None:
    """Write compose file, manifests, scripts and the code of the images, as a checkout has them. The images
    name the commit of this code. Raises ConfigError unless the folder is new or empty.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError("atelier files", f"{folder} is not an empty folder", "give a new one")
    unwanted = shutil.ignore_patterns("__pycache__")
    for name in FOLDERS:
        shutil.copytree(PROJECT / name, folder / name, ignore=unwanted)
    shutil.copytree(IMPORT_ROOT / PLUGINS, folder / "src" / PLUGINS, ignore=unwanted)
    (folder / "src" / "atelier").mkdir()
    for path in (IMPORT_ROOT / "atelier").glob("*.py*"):
        shutil.copy(path, folder / "src" / "atelier")
    for name in AT_TOP:
        shutil.copy(PROJECT / name, folder)
    about = code_provenance()
    with open(folder / ".env.example", "a") as file:
        file.write(f"\n# the code of the images\nCOMMIT={about['commit']}\nDIFF={about['diff']}\n")
    for script in (folder / "infra" / "docker").iterdir():  # installers may drop the right to execute
        if script.read_bytes()[:2] == b"#!":
            script.chmod(0o755)
