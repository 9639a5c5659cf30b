"""Snapshot of a run's code at submission, other project roots included: `{root}/code/<digest>.tar.gz`.
Workers verify the digest and run the snapshot, even if the source files have changed since.
"""

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import sys
import tarfile
import uuid
import zlib
from pathlib import Path

from atelier import IMPORT_ROOT, PROJECT
from atelier.engine.config.error import ConfigError, DamageError
from atelier.engine.config.project_roots import GIVEN, other_roots
from atelier.engine.io.storage import exists, join, read_bytes, write_bytes
from atelier.engine.io.user_folders import own_folder
from atelier.infra.code.provenance import NOTE, code_provenance, root_provenance

FOLDERS = ("flows", "tasks", "infra", "engine", "conf")
PACKAGE, ROOTS = "atelier", "roots"  # top-level folders in the archive: Atelier, and other project roots
ORDER = "order.json"  # in ROOTS: their names in order
SUFFIXES = (".py", ".yaml")  # code and configuration; no data, no hidden file, no secret
MOST = 64 << 20
THAWED = "ATELIER_THAWED"  # set in the environment of a process that runs a snapshot
DIGEST = re.compile(r"[0-9a-f]{32}")


def freeze(root: str) -> str:
    """Save a snapshot of this project's code in the store at `root`; returns its digest."""
    packed = _packed(PROJECT)
    digest = _digest(packed)
    place = _place(root, digest)
    if not exists(place):
        write_bytes(place, packed)
    return digest


def installed() -> str:
    """Digest of a snapshot of this project's code."""
    return _digest(_packed(PROJECT))


def thaw(root: str, digest: str, base: Path) -> Path:
    """A folder with the code of `digest`, unpacked below `base` when missing.

    Raises ConfigError when the store has no such code, DamageError when its content is wrong.
    """
    if not DIGEST.fullmatch(digest):
        raise ConfigError("code", f"{digest[:40]!r} is not a digest", "leave it blank for the present code")
    folder = base / digest
    if (folder / PACKAGE / NOTE).exists():
        return folder
    try:
        packed = read_bytes(_place(root, digest))
    except FileNotFoundError:
        raise ConfigError(
            "code", f"{root} has no code {digest}", "leave it blank for the present code"
        ) from None
    if _digest(packed) != digest:
        raise DamageError(f"{_place(root, digest)}: its content does not match its digest")
    base.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = base / f".{digest}.{uuid.uuid4().hex[:8]}"
    fresh.mkdir(mode=0o700)
    try:
        _unpack(packed, fresh)
        os.rename(fresh, folder)
    except (ValueError, EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
        raise DamageError(f"{_place(root, digest)}: is not code of Atelier ({error})") from None
    except OSError:
        if not (folder / PACKAGE / NOTE).exists():  # else another process was first
            raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return folder


def go_on_frozen(root: str, digest: str, module: str, *words: str) -> None:
    """Continue as `python -m <module> <words>` with the code of `digest`, by exec when it differs. Raises
    ConfigError or DamageError when there is no such code.
    """
    if digest != installed() and not os.environ.get(THAWED):
        folder = str(thaw(root, digest, own_folder() / "code"))
        os.chdir(folder)
        os.environ[THAWED] = "1"
        put_first(folder)
        use_roots_of(Path(folder))
        os.execv(sys.executable, [sys.executable, "-m", module, *words])
    put_first(str(IMPORT_ROOT))


def put_first(folder: str) -> None:
    """Have the processes that this one starts import Atelier from `folder`, before what PYTHONPATH has."""
    others = [
        place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place not in ("", folder)
    ]
    os.environ["PYTHONPATH"] = os.pathsep.join([folder, *others])


def use_roots_of(folder: Path) -> None:
    """Have this process and those that it starts find the project roots that were frozen with the code."""
    order = folder / ROOTS / ORDER
    names = json.loads(order.read_bytes()) if order.exists() else []
    os.environ[GIVEN] = json.dumps([[name, str(folder / ROOTS / name)] for name in names])


def _unpack(packed: bytes, folder: Path) -> None:
    """Extract regular files below `folder`; ValueError or a TarError for anything else."""
    with gzip.open(io.BytesIO(packed)) as file:
        raw = file.read(2 * MOST + 1)  # headers and padding included
    if len(raw) > 2 * MOST:
        raise ValueError(f"unpacked, it is more than {2 * MOST >> 20} MiB")
    with tarfile.open(fileobj=io.BytesIO(raw), mode="r:") as archive:
        for member in archive:
            if not member.isreg():
                raise ValueError(f"{member.name!r} is not a regular file")
            archive.extract(member, folder, filter="data")
    if (folder / NOTE).is_file():
        raise ConfigError(
            "code", "was frozen by a version with other module names", "submit it again to continue"
        )
    if not (folder / PACKAGE / NOTE).is_file():
        raise ValueError(f"it lacks {NOTE}")


def _digest(packed: bytes) -> str:
    return hashlib.sha256(packed).hexdigest()[:32]


def _place(root: str, digest: str) -> str:
    return join(root, "code", f"{digest}.tar.gz")


def _packed(project: Path) -> bytes:
    """The code as a reproducible archive: sorted, without times and owners."""
    files = {f"{PACKAGE}/{path.relative_to(project)}": path.read_bytes() for path in _sources(project)}
    files |= {f"{PACKAGE}/{path.name}": path.read_bytes() for path in (IMPORT_ROOT / PACKAGE).glob("*.py")}
    about = {key: code_provenance()[key] for key in ("commit", "diff")}
    files[f"{PACKAGE}/{NOTE}"] = json.dumps(about, sort_keys=True).encode()
    for root in other_roots():
        place = f"{ROOTS}/{root.name}"
        files |= {f"{place}/{path.relative_to(root.folder)}": path.read_bytes() for path in root.sources()}
        files[f"{place}/{NOTE}"] = json.dumps(root_provenance(root), sort_keys=True).encode()
    if other_roots():
        files[f"{ROOTS}/{ORDER}"] = json.dumps([root.name for root in other_roots()]).encode()
    if sum(map(len, files.values())) > MOST:
        raise ConfigError(
            str(project), f"more than {MOST >> 20} MiB of code", f"only {', '.join(FOLDERS)} belong to it"
        )
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o600
            archive.addfile(entry, io.BytesIO(content))
    return gzip.compress(raw.getvalue(), compresslevel=6, mtime=0)


def _sources(project: Path) -> list[Path]:
    return [
        path
        for folder in FOLDERS
        for path in sorted((project / folder).rglob("*"))
        if path.suffix in SUFFIXES and path.is_file() and not _is_hidden(path.relative_to(project))
    ]


def _is_hidden(path: Path) -> bool:
    return any(part == "__pycache__" or part.startswith(".") for part in path.parts)
