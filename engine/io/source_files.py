"""The files of a text source and their content ids, equal for planner and engine. Torch-free."""

import glob
import hashlib
import os
import re
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import IO

from fsspec.implementations.local import LocalFileSystem

from atelier.engine.config.chats import Chats
from atelier.engine.config.data import Labels, Source, is_stdlib
from atelier.engine.config.error import (
    AtelierError,
    ConfigError,
    DamageError,
    DataError,
    check_utf8,
    nearest,
    printable,
)
from atelier.engine.config.generated import is_generated
from atelier.engine.io import remote, storage
from atelier.engine.io.hub import commit_of, pinned

PACKING = ("", ".gz", ".zst")
TEXT, LINES, TAR = (tuple(kind + packed for packed in PACKING) for kind in (".txt", ".jsonl", ".tar"))
PARQUET, CATALOGUE = (".parquet",), (".mo",)
ARCHIVES = tuple(f"{kind}{packed}" for kind in (".warc", ".warc.wet") for packed in PACKING)
WEB = (*(f"{kind}{packed}" for kind in (".html", ".htm", ".xhtml") for packed in PACKING), *ARCHIVES)
ROWS = LINES + PARQUET + TAR
MESSAGE = ("msgid", "msgstr")  # fields of a catalogue
WEB_LIBRARY = "resiliparse"  # its version decides which text a page has
NEEDED = {".parquet": ("pyarrow", "parquet"), **dict.fromkeys(WEB, (WEB_LIBRARY, "web"))}  # package, extra
_IS_WEB = re.compile(r"\.(x?html?|warc)\b[^/]*/*$")  # a name or glob
TOPICS = "pydoc_data/topics.py"
BLOCK = 1 << 20
WAY_OUT = (
    "check that the address is right, that it can be reached from here, and that its keys are in the"
    " environment"
)
REVISIONS = ("github", "git")  # address kinds in which @ precedes a revision: org:repo@branch
MOST_FILES = 1_000_000  # per source
MOST_NAMES = 10_000  # names of a folder that are compared with a mistyped one
# file properties reported by stores that change with the content; the first one found is used
MARKS = (
    "ETag",
    "etag",
    "md5Hash",
    "mtime",
    "created",
    "LastModified",
    "sha",
    "blob_id",
    "modify",
    "modificationTime",
)
MOST_UNMARKED = 1 << 30  # bytes of a file without any of these, which is hashed instead

# Left out of the standard library: tests, installed packages, bundled wheels, build facts of this machine
# (with its paths), and generated character tables of `encodings` (near-copies of each other: 14 % of all
# tokens).
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


def files_of(source: Source | Labels | Chats, place: str = "") -> list[str]:
    """The files of `source.source`, sorted: absolute local paths, or URLs (hub URLs with commit). `place`:
    its configuration key, for errors.

    `stdlib`: the sources of this interpreter's standard library. Generated text has none. Otherwise a file, a
    folder (all text files below it) or an fsspec glob. Raises ConfigError for a missing path, a kind of file
    that cannot be read or needs a missing package, or an fsspec URL that cannot be opened; DataError for a
    folder or glob without text files.
    """
    if is_stdlib(source.source):
        return stdlib_files(source.source.partition(":")[2])
    if is_generated(source.source):
        return []
    name = {Labels: "finetune.labels", Chats: "chats"}.get(type(source), "data")
    place, endings = place or f"{name}.source", TEXT + ROWS if name == "data" else ROWS
    fields = (getattr(source, "field", ""), getattr(source, "prompt", ""))
    if source.source.endswith(CATALOGUE) or {*fields} & {*MESSAGE}:
        endings += CATALOGUE  # only if requested: many folders have some beside their text
    elif isinstance(source, Source) and _IS_WEB.search(source.source):
        endings += WEB  # likewise
    check_no_password(source.source, place)
    system, path = _filesystem(pinned(source.source, place), place)
    with reading(source.source, place):
        found = _text_files(system, path, source.source, place, endings)
    for name in found:
        check_utf8(name, place, "the file name")
    for ending in NEEDED:
        check_package(next((name for name in found if name.endswith(ending)), ""), place)
    return found


def check_package(path: str, place: str) -> None:
    """Raise ConfigError if a package for reading files like `path` is missing."""
    package, extra = next((NEEDED[ending] for ending in NEEDED if path.endswith(ending)), ("", ""))
    if package and find_spec(package) is None:
        where = f"{printable(path)} needs the package {package}"
        raise ConfigError(place, where, f"pip install {package} (the extra {extra})")


def _text_files(
    system: remote.FileSystem, path: str, given: str, place: str, endings: tuple[str, ...]
) -> list[str]:
    shown, known = printable(given), f"known: {', '.join(endings)}"
    if TEXT[0] in endings and WEB[0] not in endings:
        known += "; web pages if the name or glob ends with .html or .warc"
    if remote.ask_in_time(system, "isfile", path):
        if not _has_ending(path, endings):
            raise ConfigError(place, f"{shown} is not a text file", known)
        return [_address(system, path)]
    found = _listed(system, path, given, place)
    if len(found) > MOST_FILES:
        raise ConfigError(
            place, f"{shown} has more than {MOST_FILES} files", "give a folder or glob below it"
        )
    kept = sorted(_address(system, name) for name in found if _has_ending(name, endings))
    if not kept:
        raise DataError(
            f"{place}: {shown} has no text file (looked in {printable(path)}: {len(found)} other files);"
            f" {known}"
        )
    return kept


def _has_ending(path: str, endings: tuple[str, ...]) -> bool:
    """Whether a file's name has one of these endings; in an http address, without the part after ? or #."""
    name = re.split("[?#]", path)[0] if path.startswith(("http://", "https://")) else path
    return any(path.endswith(ending) and name.endswith(ending) for ending in endings)


def stdlib_folder() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def stdlib_files(packages: str = "") -> list[str]:
    """The .py files of the running interpreter's standard library, sorted by their path in it: all, or those
    of the comma-separated `packages`.

    Raises ConfigError for an unknown package, DataError if there are no sources.
    """
    root = stdlib_folder()
    by_package, wanted = _stdlib(root), [name.strip() for name in packages.split(",") if name.strip()]
    if wanted:
        for name in wanted:
            if name not in by_package:
                near = nearest(name, by_package)
                hint = f"did you mean {near}?" if near else ""
                raise ConfigError("data.source", f"the standard library has no package {name!r}", hint)
    found = [name for package in set(wanted or by_package) for name in by_package[package]]
    if not found:
        raise DataError(
            f"data.source: this interpreter has no standard library source below {root};"
            " give data.source=<path or glob>"
        )
    return [f"{root}/{name}" for name in sorted(found)]


@cache
def _stdlib(root: Path) -> dict[str, list[str]]:
    """The source files of a standard library by package, below its folder: none comes while it is in use."""
    found: dict[str, list[str]] = {}
    for folder, folders, names in os.walk(root):
        folders[:] = [f for f in folders if f not in _NOT_FOLDERS and not f.startswith("config-")]
        for path in (Path(folder, name).relative_to(root) for name in names if _is_stdlib_source(name)):
            found.setdefault(path.parts[0].removesuffix(".py"), []).append(path.as_posix())
    return found


def _is_stdlib_source(name: str) -> bool:
    return name.endswith(".py") and name not in _NOT_FILES and not name.startswith("_sysconfigdata")


def total_bytes(files: Iterable[tuple[str, str]]) -> int:
    """Total size of the files; a missing file counts 0 and is reported when it is read."""
    return sum(sizes_of(files))


def sizes_of(files: Iterable[tuple[str, str]]) -> list[int]:
    """The size of each file; 0 for a missing one."""
    found: list[int] = []
    for path, _ in files:
        with reading(path, path):
            system, place = remote.open_system(path)
            found.append(int(system.size(place) or 0) if system.exists(place) else 0)
    return found


def local_copy(url: str, digest: str, scratch: Path) -> Path:
    """A local file itself, or a copy of a remote one below `scratch`. Raises DataError if the copy differs
    from the store's digest.
    """
    if storage.is_local(url):
        return storage.local_path(url)
    path = scratch / url.rsplit("/", 1)[-1]
    storage.fetch(url, path)
    if not digest.startswith("remote:") and content_id(str(path)) != digest:
        raise DataError(f"source: the download of {url} does not match its store's digest; start again")
    return path


def content_id(path: str, place: str = "") -> str:
    """The content id of a file: sha256 of a local one; of a remote one sha256 if its server reports it,
    otherwise its etag (or time of change) and size, otherwise its computed sha256. Errors name `place`.

    Raises ConfigError if the server reports none and the file is too large to hash.
    """
    system, name = _filesystem(path, place or path)
    if isinstance(system, LocalFileSystem):
        return _digest(open(name, "rb"))
    with reading(path, place or path):
        if not commit_of(path):  # the content of a commit never changes
            system.invalidate_cache()
        about = remote.ask_in_time(system, "info", name)
        lfs = about.get("lfs")
        if isinstance(lfs, dict) and re.fullmatch("[0-9a-f]{64}", str(lfs.get("sha256"))):
            return str(lfs["sha256"])
        mark = next((str(about[key]) for key in MARKS if about.get(key)), "")
        if mark:
            return f"remote:{mark.strip(chr(34))}:{about.get('size')}"
        if (about.get("size") or 0) > MOST_UNMARKED:
            raise _unmarked(path)
        return _digest(system.open(name, "rb"), path)


def _digest(file: IO[bytes], path: str = "") -> str:
    """sha256 of an open file; of `path`, a remote one, up to `MOST_UNMARKED` bytes."""
    digest, total = hashlib.sha256(), 0
    with file:
        while block := file.read(BLOCK):
            digest.update(block)
            total += len(block)
            if path and total > MOST_UNMARKED:
                raise _unmarked(path)
    return digest.hexdigest()


def _unmarked(path: str) -> ConfigError:
    return ConfigError(
        path,
        "its server reports neither an etag nor a time of change, and it is too large to be hashed"
        f" (more than {MOST_UNMARKED >> 20} MiB)",
        "copy it to a folder or an object store",
    )


@contextmanager
def reading(given: str, place: str) -> Iterator[None]:
    """Convert a store's errors, which differ by kind of store, to a ConfigError with the address. Damage is
    of the user's own file, which no run makes again, so it is a DataError.
    """
    try:
        yield
    except DamageError as damage:
        raise DataError(f"{place}: {damage}; fix this file, or get it again") from None
    except AtelierError:
        raise
    except Exception as error:
        what = "" if place == given else f"{printable(given)} "
        raise ConfigError(place, f"{what}cannot be read ({_reason(error)})", WAY_OUT) from error


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return printable(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def check_no_password(url: str, place: str) -> None:
    """Raise ConfigError for an address with user and password, which records, tags and logs would keep."""
    for part in url.split("::"):
        kind, _, rest = part.partition("://")
        user = rest.split("/")[0].rpartition("@")[0]
        if ":" in user and kind not in REVISIONS:
            raise ConfigError(
                place,
                f"{printable(kind, 40)}://...@... contains a password, which records would store",
                "set credentials in the environment: AWS_..., or FSSPEC_<kind> for other stores",
            )


def short_names(paths: Iterable[str]) -> dict[str, str]:
    """Each path without the folders that all share, which makes it independent of their location."""
    parts = {path: PurePosixPath(path).parts for path in paths}
    shared = 0
    for level in zip(*(folders[:-1] for folders in parts.values()), strict=False):
        if len(set(level)) > 1:
            break
        shared += 1
    return {path: "/".join(folders[shared:]) for path, folders in parts.items()}


def _filesystem(url: str, place: str) -> tuple[remote.FileSystem, str]:
    try:
        return remote.open_system(url)
    except (ValueError, ImportError) as error:
        raise ConfigError(
            place,
            f"{printable(url)}: no such kind of storage ({printable(error)})",
            "give a path or an fsspec URL",
        ) from None
    except Exception as error:  # some kinds of storage contact their server at once
        raise ConfigError(place, f"{printable(url)} cannot be opened ({_reason(error)})", WAY_OUT) from error


def _address(system: remote.FileSystem, path: str) -> str:
    return str(path) if isinstance(system, LocalFileSystem) else str(system.unstrip_protocol(path))


def _listed(system: remote.FileSystem, path: str, given: str, place: str) -> list[str]:
    """All files of a folder or glob, at most `MOST_FILES` + 1. Raises ConfigError if it does not exist."""
    if remote.ask_in_time(system, "isdir", path):
        return _below(system, path)
    shown = printable(given)
    if not glob.has_magic(path):
        what = "is not a regular file" if remote.ask_in_time(system, "exists", path) else "does not exist"
        raise ConfigError(place, f"{shown} {what} (looked for {printable(path)})", _nearest_in(system, path))
    found = [str(name) for name in remote.ask_in_time(system, "glob", path) if system.isfile(name)]
    if not found:
        raise DataError(
            f"{place}: no file matches {shown} (looked for {printable(path)}); {_nearest_in(system, path)}"
        )
    return found


def _below(system: remote.FileSystem, path: str) -> list[str]:
    if not isinstance(system, LocalFileSystem):
        return [str(name) for name in remote.ask_in_time(system, "find", path)]
    walked = (f"{folder}/{name}" for folder, _, names in system.walk(path) for name in names)
    return list(islice(walked, MOST_FILES + 1))


def _nearest_in(system: remote.FileSystem, path: str) -> str:
    """Advice: the name most similar to the missing one in its deepest existing folder, and no other."""
    parts = path.split("/")
    for depth in range(len(parts) - 1, 0, -1):
        folder = "/".join(parts[:depth]) or "/"
        if glob.has_magic(folder) or not remote.ask_in_time(system, "isdir", folder):
            continue
        there = remote.ask_in_time(system, "ls", folder, detail=False)
        names = {str(name).rstrip("/").rsplit("/", 1)[-1] for name in there[:MOST_NAMES]}
        near = nearest(parts[depth], sorted(names))
        if near and near != parts[depth]:
            return f"did you mean {printable(folder.rstrip('/') + '/' + near)}?"
        break
    return "give a path or glob of .txt, .jsonl, .parquet, .tar or .mo files or web pages, or stdlib"
