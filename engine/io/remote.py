"""Access remote stores: every request has a time limit, every failure is an OSError, and changed credentials
are read again. Torch-free.

By default S3's client waits minutes for a silent server, writes without a limit, lists from a cache, and
raises its own errors.
"""

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar, cast

import fsspec
from fsspec.asyn import AsyncFileSystem
from fsspec.config import conf
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from atelier.engine.io.addresses import CHECKED, NAMED, checked_client
from atelier.engine.io.local_url import FILE, absolute, check_chain, is_path


class FileSystem(Protocol):
    """The methods of fsspec's filesystems that are called besides `ask`; fsspec declares no types."""

    protocol: str | tuple[str, ...]

    def open(self, path: str, mode: str = ...) -> IO[bytes]: ...

    def isfile(self, path: str) -> bool: ...

    def walk(self, path: str) -> Iterator[tuple[str, list[str], list[str]]]: ...

    def unstrip_protocol(self, name: str) -> str: ...

    def invalidate_cache(self, path: str | None = None) -> None: ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int | None: ...


S3 = ("s3", "s3a")
ANSWER_S = 30.0  # limit for a small request, retries included
LISTING_S = 600.0  # limit for all names below a folder
SLOWEST = 1 << 20  # bytes per second of a large request
IN_MEMORY = 32 << 20  # bytes buffered in memory; larger files use a temporary file
MOST_RACES = 10  # attempts for one folder; another client may create folders on the path meanwhile
AGAIN_S = 5.0  # minimum time between checks for changed credentials
# s3fs itself retries quick failures five times
CLIENT = {
    "connect_timeout": 5,
    "read_timeout": 10,
    "retries": {"total_max_attempts": 1},
    "request_checksum_calculation": "when_required",
}
Result = TypeVar("Result")
_renewed: dict[int, float] = {}
_lock = threading.Lock()


def options(url: str) -> dict[str, Any]:  # of fsspec, which declares no types
    """Options for opening the filesystem of `url`. Client options in the environment (FSSPEC_S3) override
    them. If forms choose sources, every http connection is checked, also inside a chain.
    """
    if NAMED in os.environ and (kinds := [kind for kind in CHECKED if f"{kind}://" in url]):
        return {kind: {"get_client": checked_client} for kind in kinds}
    if not url.startswith(tuple(f"{name}://" for name in S3)):
        return {}
    given = conf.get("s3", {})
    ours: dict[str, Any] = {"use_listings_cache": False, "config_kwargs": CLIENT}
    return {key: value for key, value in ours.items() if key not in given}


def is_s3(system: FileSystem) -> bool:
    return "s3" in system.protocol


Argument = str | bytes | float


# the answers are Any: fsspec declares no types of what its methods return
def ask(system: FileSystem, name: str, *given: Argument, num_bytes: int = 0, **named: Argument) -> Any:
    """Call a filesystem's method within a time limit, which grows with `num_bytes`."""
    if isinstance(system, AsyncFileSystem):
        named["timeout"] = ANSWER_S + num_bytes / SLOWEST
    return _polite(system, lambda: getattr(system, name)(*given, **named), *given[:1])


def ask_in_time(system: FileSystem, name: str, *given: Argument, **named: Argument) -> Any:
    """As `ask`, for any filesystem: one without own limits is called in a thread, which is abandoned if it
    does not answer. Listings have a longer limit.

    Raises TimeoutError if there is no answer.
    """
    seconds = LISTING_S if name in ("find", "glob", "ls") else ANSWER_S
    if isinstance(system, AsyncFileSystem):
        return _polite(system, lambda: getattr(system, name)(*given, **named, timeout=seconds), *given[:1])
    if isinstance(system, LocalFileSystem | MemoryFileSystem):
        return getattr(system, name)(*given, **named)
    return _in_thread(
        f"asking {name}",
        lambda: _polite(system, lambda: getattr(system, name)(*given, **named), *given[:1]),
        seconds,
    )


def _in_thread(name: str, ask_it: Callable[[], Result], seconds: float) -> Result:
    answer: Future[Result] = Future()

    def act() -> None:
        try:
            answer.set_result(ask_it())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=act, name=name, daemon=True).start()
    try:
        return answer.result(seconds)
    except TimeoutError:
        if answer.done():
            raise
        raise TimeoutError(f"no answer within {seconds:.0f} s") from None


def _polite(system: FileSystem, act: Callable[[], Result], path: Argument = "") -> Result:
    """The result of `act`. Errors without a file name get a note with `path`."""
    try:
        with _errors():
            try:
                return act()
            except PermissionError:
                if not _renew(system):
                    raise
                return act()
    except OSError as error:
        if path and not error.filename:
            error.add_note(system.unstrip_protocol(str(path)))
        raise


def _renew(system: FileSystem) -> bool:
    """Make the client read its credentials again, which may have been replaced; at most once per AGAIN_S
    seconds.
    """
    if not is_s3(system):
        return False
    with _lock:
        if time.monotonic() - _renewed.get(id(system), -AGAIN_S) < AGAIN_S:
            return True  # another thread has just done so
        _renewed[id(system)] = time.monotonic()
    cast(Any, system).connect(refresh=True)  # S3's own
    return True


@contextmanager
def _errors() -> Iterator[None]:
    """Convert errors of S3's client to OSErrors."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("botocore", "aiobotocore", "aiohttp"):
            raise
        raise OSError(f"{type(error).__name__}: {error}") from error


@contextmanager
def writing(system: FileSystem, path: str) -> Iterator[IO[bytes]]:
    """A binary file that is uploaded to `path` if the block ends without error. It is buffered here first,
    because a store commits the sent bytes when its file is closed, even after an error.
    """
    with tempfile.SpooledTemporaryFile(max_size=IN_MEMORY) as file:
        yield file
        size = file.tell()
        make_parent(system, path)
        file.seek(0)
        if size <= IN_MEMORY:
            ask(system, "pipe_file", path, file.read(), num_bytes=size)
            return
        with tempfile.NamedTemporaryFile() as whole:
            shutil.copyfileobj(file, whole)
            whole.flush()
            ask(system, "put_file", whole.name, path, num_bytes=size)


def make_parent(system: FileSystem, path: str) -> None:
    """Create the folder of `path` in stores with folders; not in S3, where a mistyped name would create a
    bucket.
    """
    if is_s3(system):
        return
    folder = path.rsplit("/", 1)[0]
    for attempt in range(1, MOST_RACES + 1):
        try:
            return ask(system, "makedirs", folder, exist_ok=True)
        except Exception:  # errors differ by kind of store
            # another client may have created it, or a folder above it, since the last listing
            system.invalidate_cache()
            if ask(system, "isdir", folder):
                return None
            if attempt == MOST_RACES:
                raise


def fetch(system: FileSystem, path: str, target: Path) -> None:
    """Copy a file to a local path."""
    size = ask(system, "size", path) or 0
    ask(system, "get_file", path, str(target), num_bytes=size)


def read(system: FileSystem, path: str) -> bytes:
    """The whole of a file. Raises FileNotFoundError if there is none."""
    try:
        return ask(system, "cat_file", path, num_bytes=IN_MEMORY)
    except TimeoutError:
        size = ask(system, "size", path)  # fails if the file is larger or the store is silent
        if size <= IN_MEMORY:
            raise
        return ask(system, "cat_file", path, num_bytes=size)


def read_range(system: FileSystem, path: str, begin: int, end: int) -> bytes:
    """These bytes of a file."""
    exact = {} if isinstance(system, AsyncFileSystem) else {"cache_type": "none"}  # else it reads 5 MB ahead
    found = ask(system, "cat_file", path, start=begin, end=end, num_bytes=end - begin, **exact)
    return found[: end - begin]  # some servers do not support ranges


def remove(system: FileSystem, path: str) -> None:
    """Remove a file, or everything below a folder one by one: some servers refuse S3's bulk removal."""
    if not is_s3(system):
        ask(system, "rm", path, recursive=True)
        return
    found = ask(system, "find", path)
    for one in found:
        with suppress(FileNotFoundError):
            ask(system, "rm_file", one)


def open_system(url: str) -> tuple[FileSystem, str]:
    """fsspec's filesystem of `url`, and the path in it. Local paths, file:// included, bypass fsspec's URL
    parsing, which would cut `c::d`.
    """
    if is_path(url.removeprefix(FILE)):
        return cast(FileSystem, LocalFileSystem()), absolute(url.removeprefix(FILE))
    check_chain(url)
    system, path = fsspec.core.url_to_fs(url, **options(url))
    return cast(FileSystem, system), path
