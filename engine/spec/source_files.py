"""Which files a source of text means, and what identifies each: one answer for the planner and for the
engine. Torch-free.
"""

import glob
import hashlib
import os
import sysconfig
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from engine.spec.base import nearest
from engine.spec.data import Labels, Source
from engine.spec.error import ConfigError, DataError

TEXT, LINES = (".txt", ".txt.gz"), (".jsonl", ".jsonl.gz")
TOPICS = "pydoc_data/topics.py"
BLOCK = 1 << 20

# Left out of the standard library: tests, what is installed beside it, bundled wheels, build facts of this
# one machine (they name its paths), and the generated character tables of `encodings` (near-copies of each
# other: 14 % of all tokens).
_NOT_FOLDERS = {
    "test",
    "tests",
    "idle_test",
    "site-packages",
    "dist-packages",
    "__pycache__",
    "_bundled",
    "encodings",
}
_NOT_FILES = {"sitecustomize.py", "usercustomize.py"}


def files_of(source: Source | Labels) -> list[str]:
    """The files that `source.source` means, sorted: absolute local paths, or URLs.

    `stdlib`: the sources of this interpreter's standard library. Else a file, a folder (all text files below
    it) or an fsspec glob. Raises ConfigError for a path that is not there, a kind of file that cannot be
    read, or an fsspec URL that cannot be opened; DataError for a folder or glob without any file of text.
    """
    if is_stdlib(source.source):
        return stdlib_files(source.source.partition(":")[2])
    examples = isinstance(source, Labels)
    place, endings = ("labels.source", LINES) if examples else ("data.source", TEXT + LINES)
    system, path = _filesystem(source.source, place)
    if system.isfile(path):
        if not path.endswith(endings):
            raise ConfigError(place, f"{source.source} is not a file of text", f"known: {', '.join(endings)}")
        return [_address(system, path)]
    found = _listed(system, path, source.source, place)
    kept = sorted(_address(system, name) for name in found if name.endswith(endings))
    if not kept:
        raise DataError(
            f"{place}: {source.source} has no file of text (looked in {path}: {len(found)} other files);"
            f" known: {', '.join(endings)}"
        )
    return kept


def is_stdlib(source: str) -> bool:
    """True for `stdlib` and for `stdlib:<package>,<package>`."""
    return source == "stdlib" or source.startswith("stdlib:")


def stdlib_folder() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def stdlib_files(packages: str = "") -> list[str]:
    """The .py files of the running interpreter's standard library, sorted by their path in it; all of them,
    or those of the packages and modules that `packages` lists with commas.
    """
    root, found = stdlib_folder(), []
    for folder, folders, names in os.walk(root):
        folders[:] = [f for f in folders if f not in _NOT_FOLDERS and not f.startswith("config-")]
        relative = Path(folder).relative_to(root)
        found += [relative / name for name in names if _is_stdlib_source(name)]
    wanted = [name.strip() for name in packages.split(",") if name.strip()]
    if wanted:
        by_package = {path.parts[0].removesuffix(".py") for path in found}
        for name in wanted:
            if name not in by_package:
                near = nearest(name, by_package)
                hint = f"did you mean {near}?" if near else ""
                raise ConfigError("data.source", f"the standard library has no package {name!r}", hint)
        found = [path for path in found if path.parts[0].removesuffix(".py") in wanted]
    if not found:
        raise DataError(
            f"data.source: this interpreter has no standard library source below {root};"
            " give data.source=<path or glob>"
        )
    return [str(root / path) for path in sorted(found, key=lambda path: path.as_posix())]


def _is_stdlib_source(name: str) -> bool:
    return name.endswith(".py") and name not in _NOT_FILES and not name.startswith("_sysconfigdata")


def content_id(path: str) -> str:
    """What identifies the content of a file: sha256 of a local one; of a remote one, its etag (or time of
    change) and size.
    """
    system, place = _filesystem(path, path)
    if not isinstance(system, LocalFileSystem):
        system.invalidate_cache()
        about = system.info(place)
        mark = next(
            (str(about[key]) for key in ("ETag", "etag", "md5Hash", "mtime", "created") if about.get(key)), ""
        )
        return f"remote:{mark.strip(chr(34))}:{about.get('size')}"
    digest = hashlib.sha256()
    with open(place, "rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def short_names(paths: Iterable[str]) -> dict[str, str]:
    """Each path without the folders that all share: the same wherever the files lie."""
    parts = {path: PurePosixPath(path).parts for path in paths}
    shared = 0
    for level in zip(*(folders[:-1] for folders in parts.values()), strict=False):
        if len(set(level)) > 1:
            break
        shared += 1
    return {path: "/".join(folders[shared:]) for path, folders in parts.items()}


def _filesystem(url: str, place: str) -> tuple[Any, str]:
    try:
        return fsspec.core.url_to_fs(url)
    except (ValueError, ImportError) as error:
        raise ConfigError(
            place, f"{url}: no such kind of storage ({error})", "give a path or an fsspec URL"
        ) from None


def _address(system: Any, path: str) -> str:
    return str(path) if isinstance(system, LocalFileSystem) else str(system.unstrip_protocol(path))


def _listed(system: Any, path: str, given: str, place: str) -> list[str]:
    """All files of a folder or glob; ConfigError when there is no such thing."""
    if system.isdir(path):
        return [str(name) for name in system.find(path)]
    if not glob.has_magic(path):
        raise ConfigError(place, f"{given} does not exist (looked for {path})", _nearest_in(system, path))
    found = [str(name) for name in system.glob(path) if system.isfile(name)]
    if not found:
        raise DataError(f"{place}: no file matches {given} (looked for {path}); {_nearest_in(system, path)}")
    return found


def _nearest_in(system: Any, path: str) -> str:
    """Advice: the name most like the missing one, in the deepest of its folders that exists."""
    parts = path.split("/")
    for depth in range(len(parts) - 1, 0, -1):
        folder = "/".join(parts[:depth]) or "/"
        if glob.has_magic(folder) or not system.isdir(folder):
            continue
        there = sorted(str(name).rstrip("/").rsplit("/", 1)[-1] for name in system.ls(folder, detail=False))
        near = nearest(parts[depth], there)
        if near:
            return f"did you mean {folder.rstrip('/')}/{near}?"
        return f"{folder} holds {', '.join(there[:5]) or 'nothing'}{', ...' if len(there) > 5 else ''}"
    return "give a path or glob of .txt or .jsonl files, or stdlib"
