"""Files at any fsspec URL, with the guarantees that artifacts need: atomic writes, exclusive creates, digests
on read. Torch-free.

Anything that is not a URL is a local path (engine/io/local_url.py). A local commit: write a temporary file,
fsync, rename or link, fsync the folder.
"""

import hashlib
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from atelier.engine.config.base import Json, SpecType
from atelier.engine.config.document import MOST_BYTES, parse_as, parse_json, parse_object
from atelier.engine.config.error import ConfigError, DamageError
from atelier.engine.config.record import FileEntry
from atelier.engine.io import remote
from atelier.engine.io.local_url import FILE, is_path
from atelier.engine.io.remote import ask, open_system

BLOCK = 1 << 20
TEMPORARY = ".tmp-"
Part = bytes | memoryview  # part of a file's content
Stamp = tuple[int, int, int]  # of a file: time of change, size, inode
UMASK = os.umask(0o077)  # the only way to read it
os.umask(UMASK)
_memory_lock = threading.Lock()


def join(url: str, *parts: str) -> str:
    return "/".join([url.rstrip("/"), *(part.strip("/") for part in parts)])


def filesystem(url: str) -> tuple[remote.FileSystem, str]:
    """The fsspec filesystem of `url`, and the path in it. Raises ConfigError for an unknown kind of storage
    or an invalid URL.
    """
    try:
        return open_system(url)
    except (ValueError, ImportError) as error:
        raise ConfigError(
            url, f"no such kind of storage ({error})", "give a local folder or an fsspec URL"
        ) from None
    except OSError:
        raise
    except Exception as error:  # some kinds open their file at once, with their own errors
        raise ConfigError(
            url, f"cannot be opened ({type(error).__name__}: {error})", "check that the address is right"
        ) from None


def is_local(url: str) -> bool:
    return is_path(url.removeprefix(FILE)) or isinstance(filesystem(url)[0], LocalFileSystem)


def local_path(url: str) -> Path:
    """The path of a local URL. Raises ConfigError for others."""
    system, path = filesystem(url)
    if not isinstance(system, LocalFileSystem):
        raise ConfigError(url, "is not a local folder")
    return Path(path)


def reach(url: str) -> None:
    """Raise ConfigError unless files can be written under `url`; called before work whose result could not be
    stored. Local folders are not checked.
    """
    probe = join(url, f"{TEMPORARY}probe")
    try:
        if not is_local(url):
            write_bytes(probe, b"\n")
            remove(probe)
    except ConfigError:
        raise
    except Exception as error:  # errors differ by kind of store
        raise ConfigError(
            url,
            f"the store cannot be written to ({type(error).__name__}: {error})",
            "check that it is up, that the address is right and that you may write there",
        ) from None


def size(url: str) -> int:
    """Bytes of a file. Raises FileNotFoundError if there is none."""
    system, path = filesystem(url)
    return ask(system, "size", path)


def size_below(url: str) -> int:
    """Bytes of all files below a folder."""
    system, path = filesystem(url)
    return int(ask(system, "du", path))


def fetch(url: str, target: Path) -> None:
    """Copy a file to a local path."""
    target.parent.mkdir(parents=True, exist_ok=True)
    remote.fetch(*filesystem(url), target)


def copy_file(url: str, target: str) -> None:
    """Copy a file within its remote store."""
    system, path = filesystem(url)
    ask(system, "copy", path, filesystem(target)[1])


def stamp_of(path: str | Path) -> Stamp | None:
    """A stamp that changes with a local file; None if there is no file."""
    try:
        about = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return (about.st_mtime_ns, about.st_size, about.st_ino)


def exists(url: str) -> bool:
    system, path = filesystem(url)
    return ask(system, "exists", path)


def read_bytes(url: str, most: int = 0) -> bytes:
    """The whole of a file, of at most `most` bytes (0: any size).

    Raises DamageError for a larger file, and for anything but a regular file (a folder, a blocking pipe, an
    endless device).
    """
    system, path = filesystem(url)
    if isinstance(system, LocalFileSystem):
        with open_regular(path) as file:
            data = file.read(most + 1) if most else file.read()
    else:
        if most and (ask(system, "size", path) or 0) > most:
            raise DamageError(f"{url}: larger than {most >> 20} MiB")
        data = remote.read(system, path)
    if most and len(data) > most:
        raise DamageError(f"{url}: larger than {most >> 20} MiB")
    return data


def read_range(url: str, begin: int, end: int) -> bytes:
    """These bytes of a file, or fewer if it ends earlier. Raises DamageError as `read_bytes`."""
    system, path = filesystem(url)
    if isinstance(system, LocalFileSystem):
        with open_regular(path) as file:
            file.seek(begin)
            return file.read(end - begin)
    return remote.read_range(system, path, begin, end)


def open_regular(path: str | Path) -> IO[bytes]:
    """Open a local file for reading. Raises DamageError for a non-regular file, which could block forever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise DamageError(f"{path}: is {'a folder' if stat.S_ISDIR(mode) else 'not a regular file'}")
    return os.fdopen(descriptor, "rb")


def read_json(url: str, what: str = "JSON") -> Json:
    """The untrusted document at `url`. Raises DamageError if it exceeds limits of size, depth or numbers."""
    return parse_json(read_bytes(url, MOST_BYTES), url, what)


def read_object(url: str, what: str = "a JSON object") -> dict[str, Json]:
    """As `read_json`, for a document that must be an object."""
    return parse_object(read_bytes(url, MOST_BYTES), url, what)


def read_as(kind: type[SpecType], url: str, what: str) -> SpecType:
    """As `read_object`, parsed as a spec. Raises DamageError if it does not fit."""
    return parse_as(kind, read_bytes(url, MOST_BYTES), url, what)


def read_text(url: str) -> str:
    """The text of a file. Raises DamageError if it is not UTF-8."""
    try:
        return read_bytes(url).decode()
    except UnicodeDecodeError:
        raise DamageError(f"{url}: not UTF-8") from None


def names(url: str) -> list[str]:
    """Names directly under a folder, sorted, without temporary ones; [] if there is no such folder."""
    system, path = filesystem(url)
    if isinstance(system, LocalFileSystem):
        try:
            found = os.listdir(path)
        except (FileNotFoundError, NotADirectoryError):
            return []
    else:
        system.invalidate_cache(path)
        try:
            there = ask(system, "ls", path, detail=False)
            found = [entry.rstrip("/").rsplit("/", 1)[-1] for entry in there]
        except FileNotFoundError:
            return []
    return sorted(name for name in found if not name.startswith(TEMPORARY))


def write_bytes(url: str, data: bytes) -> None:
    """Write `data` to `url`, replacing its content: readers see either the old or the new content."""
    with writing(url) as file:
        file.write(data)


@contextmanager
def writing(url: str, *, makes_folder: bool = True) -> Iterator[IO[bytes]]:
    """A binary file that appears at `url` completely when the block ends, or not at all after an error.
    Raises FileNotFoundError if a local folder is missing and not `makes_folder`.
    """
    system, path = filesystem(url)
    if not isinstance(system, LocalFileSystem):
        with remote.writing(system, path) as file:
            yield file
        return
    target = Path(path)
    if makes_folder:
        make_folder(target.parent)
    descriptor, temporary = _temporary(target.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    sync_folder(target.parent)


def has_exclusive_create(url: str) -> bool:
    """Whether `create_exclusive` works here; infra/store/conditional_create.py covers other stores."""
    return isinstance(filesystem(url)[0], LocalFileSystem | MemoryFileSystem)


def create_exclusive(url: str, data: bytes) -> bool:
    """Create `url` with `data` unless it exists: True for exactly one of racing callers; only complete
    content is ever visible.

    Local: fsync, then link(2) (fsspec's own exclusive mode is not atomic). Memory: a lock in this process.
    Raises ConfigError for other stores.
    """
    system, path = filesystem(url)
    if isinstance(system, MemoryFileSystem):
        with _memory_lock:
            if system.exists(path):
                return False
            system.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
            system.pipe_file(path, data)
            return True
    if not isinstance(system, LocalFileSystem):
        raise ConfigError(
            url, "this store has no exclusive create that Atelier knows", "use a local or shared POSIX folder"
        )
    attempts = 10
    while True:
        attempts -= 1
        try:
            return _link_new(Path(path), data)
        except (FileNotFoundError, FileExistsError):  # its folder was removed meanwhile; create it again
            if attempts == 0:
                raise


def _link_new(target: Path, data: bytes) -> bool:
    make_folder(target.parent)
    descriptor, temporary = _temporary(target.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, target)
        except FileExistsError:
            return False
    finally:
        with suppress(OSError):
            os.unlink(temporary)
    sync_folder(target.parent)
    return True


def _temporary(folder: Path) -> tuple[int, str]:
    """A new file with permissions of the umask (mkstemp's would exclude other users of a shared store)."""
    descriptor, name = tempfile.mkstemp(prefix=TEMPORARY, dir=folder)
    os.fchmod(descriptor, 0o666 & ~UMASK)
    return descriptor, name


def make_remote_folder(url: str) -> None:
    """Create a folder in a remote store with folders."""
    system, path = filesystem(url)
    remote.make_parent(system, join(path, "file"))


def make_folder(folder: Path) -> None:
    """Create a local folder and fsync its parent."""
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(url: str) -> None:
    """Remove a file, or a folder with everything in it; no error if it does not exist."""
    with suppress(FileNotFoundError):
        remote.remove(*filesystem(url))


def digest_of(url: str) -> FileEntry:
    """Size and sha256 of the file at `url`; `path` is its last name."""
    system, path = filesystem(url)
    total, digest = 0, hashlib.sha256()
    is_here = isinstance(system, LocalFileSystem)
    with open_regular(path) if is_here else system.open(path, "rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
            total += len(block)
    return FileEntry(path=path.rsplit("/", 1)[-1], bytes=total, sha256=digest.hexdigest())


def free_bytes(folder: Path) -> int:
    """Free bytes on the disk of a folder, which need not exist yet."""
    return shutil.disk_usage(next(one for one in (folder, *folder.parents) if one.exists())).free


def put_file(local: Path, url: str) -> FileEntry:
    """Copy a local file to `url` and return its entry."""
    with open(local, "rb") as source:
        return put_parts(url, iter(lambda: source.read(BLOCK), b""))


def put_parts(url: str, parts: Iterable[Part]) -> FileEntry:
    """Write the parts to `url` one by one and return the file's entry. A part is released before the next is
    taken.
    """
    with writing(url) as target:
        return hashed(url, parts, target.write)


def hashed(url: str, parts: Iterable[Part], write: Callable[[memoryview], int] = len) -> FileEntry:
    """The entry (size and sha256) of a file of these parts; each block of at most BLOCK bytes also goes to
    `write`.
    """
    digest, total = hashlib.sha256(), 0

    def take(block: memoryview) -> None:
        digest.update(block)
        write(block)

    for part in parts:
        total += _in_blocks(part, take)
        del part  # it may be a tensor's memory; free it before the next
    return FileEntry(path=url.rsplit("/", 1)[-1], bytes=total, sha256=digest.hexdigest())


def _in_blocks(part: Part, take: Callable[[memoryview], None]) -> int:
    view = memoryview(part)
    for start in range(0, len(view), BLOCK):
        take(view[start : start + BLOCK])
    return len(view)


def verify(url: str, entry: FileEntry, name: str = "") -> None:
    """Compare the file at `url` with its entry. Raises DamageError naming the file (as `name` if `url` is a
    copy).
    """
    name = name or url
    try:
        found = digest_of(url)
    except FileNotFoundError:
        raise DamageError(f"{name}: missing") from None
    if found.bytes != entry.bytes:
        raise DamageError(f"{name}: has {found.bytes} bytes, but its record has {entry.bytes}")
    if found.sha256 != entry.sha256:
        raise DamageError(f"{name}: content does not match its digest")
