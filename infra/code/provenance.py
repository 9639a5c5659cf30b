"""Provenance of code: commit and digest of uncommitted changes of Atelier and of other project roots, library
versions, digest of the engine's sources.
"""

import hashlib
import json
import platform
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import cast

from atelier import PROJECT, __version__
from atelier.engine.config.base import Json
from atelier.engine.config.error import ConfigError
from atelier.engine.config.project_roots import TOML, ProjectRoot, other_roots

NOTE = ".code.json"  # beside unpacked code: commit and diff of its sources
DISTRIBUTION = "atelier-lm"
INSTALL = f"pip install '{DISTRIBUTION}[train]'"
LIBRARIES = ("torch", "numpy", "tokenizers", "safetensors", "prefect", "mlflow", "hydra-core")


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def version() -> str:
    """Atelier's version."""
    return f"atelier {__version__}"


@cache
def engine_digest() -> str:
    """sha256 over names and contents of the engine's sources, 16 digits."""
    digest = hashlib.sha256()
    for path in sorted((PROJECT / "engine").rglob("*.py")):
        digest.update(str(path.relative_to(PROJECT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


@cache
def versions() -> dict[str, str]:
    """The versions of Python, Atelier and the libraries that compute, without missing ones."""
    found = {"python": platform.python_version(), DISTRIBUTION: __version__}
    for library in LIBRARIES:
        try:
            found[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            continue
    return found


def has_torch() -> bool:
    """Whether this interpreter finds torch, which a control plane lacks. It is not imported."""
    try:
        return find_spec("torch") is not None
    except ImportError:
        return False


def check_torch(what: str, way_out: str = "") -> None:
    """Raises ConfigError that names the extra if `what` is to compute here and torch is missing."""
    if not has_torch():
        raise ConfigError("torch", f"is not installed here, and {what} computes with it", INSTALL + way_out)


def _origin(folder: Path) -> dict[str, str]:
    """commit and diff of the code in a folder, from git or from the note beside unpacked code
    (infra/code/frozen.py).
    """
    if (folder / NOTE).exists():
        return json.loads((folder / NOTE).read_bytes())
    diff = _git(folder, "diff", "HEAD", "--", ".") + "".join(_new_files(folder))
    return {
        "commit": _git(folder, "rev-parse", "HEAD"),
        "diff": hashlib.sha256(diff.encode()).hexdigest()[:16] if diff else "",
    }


def _new_files(folder: Path) -> Iterator[str]:
    """Names of files that git does not know yet, and digests of those that are code or configuration."""
    for name in _git(folder, "ls-files", "--others", "--exclude-standard").splitlines():
        yield name
        with suppress(OSError):
            if name.endswith((".py", ".yaml")):
                yield hashlib.sha256((folder / name).read_bytes()).hexdigest()


def roots_provenance() -> dict[str, dict[str, str]]:
    """The provenance of each project root besides Atelier."""
    return {root.name: dict(root_provenance(root)) for root in other_roots()}


@cache
def root_provenance(root: ProjectRoot) -> dict[str, str]:
    """A root's version, commit and diff; '' where they are unknown, as for one that git does not track."""
    found = {"version": "", "commit": "", "diff": ""}
    with suppress(metadata.PackageNotFoundError):
        found["version"] = metadata.version(root.name)
    is_known = (root.folder / NOTE).exists() or bool(_git(root.folder, "ls-files", TOML))
    return found | (_origin(root.folder) if is_known else {})


@cache
def code_provenance() -> dict[str, Json]:
    """commit, sha256 of the uncommitted diff ('' = clean), the engine's digest, versions, and other roots."""
    roots = cast("dict[str, Json]", roots_provenance())
    return {
        **_origin(PROJECT),
        **({"roots": roots} if roots else {}),
        "engine": engine_digest(),
        "versions": cast("dict[str, Json]", versions()),
        "host": platform.node(),
    }
