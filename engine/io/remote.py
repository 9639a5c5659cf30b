"""Manners of stores that are no local folder: every request ends in time, every failure is an OSError, and
credentials that have changed are read again. Torch-free.

S3's client of itself asks a silent server for minutes, writes to one for ever, lists from memory, and raises
errors of its own.
"""

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypeVar

import fsspec
from fsspec.asyn import AsyncFileSystem
from fsspec.config import conf
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

S3 = ("s3", "s3a")
ANSWER_S = 30.0  # for a small request, its repetitions included
LISTING_S = 600.0  # for all names below a folder
SLOWEST = 1 << 20  # bytes a second of a large one
IN_MEMORY = 32 << 20  # bytes of a file that are held before they go to a temporary one
MOST_RACES = 10  # for one folder: each lost one means that somebody made a folder of the path
AGAIN_S = 5.0  # between two looks for changed credentials
# quick answers are asked for again by s3fs itself, five times
CLIENT = {
    "connect_timeout": 5,
    "read_timeout": 10,
    "retries": {"total_max_attempts": 1},
    "request_checksum_calculation": "when_required",
}
Result = TypeVar("Result")
_renewed: dict[int, float] = {}
_lock = threading.Lock()


def options(url: str) -> dict[str, Any]:
    """How the filesystem of `url` is opened. What the environment says of the client (FSSPEC_S3) goes before
    ours.
    """
    if not url.startswith(tuple(f"{name}://" for name in S3)):
        return {}
    given = conf.get("s3", {})
    ours = {"use_listings_cache": False, "config_kwargs": CLIENT}
    return {key: value for key, value in ours.items() if key not in given}


def is_s3(system: Any) -> bool:
    return "s3" in system.protocol


def ask(system: Any, name: str, *given: Any, num_bytes: int = 0, **named: Any) -> Any:
    """Call a method of a filesystem; what moves `num_bytes` may take longer."""
    if isinstance(system, AsyncFileSystem):
        named["timeout"] = ANSWER_S + num_bytes / SLOWEST
    return _polite(system, lambda: getattr(system, name)(*given, **named))


def ask_in_time(system: Any, name: str, *given: Any, **named: Any) -> Any:
    """As `ask`, of any kind of filesystem: one that sets no limits itself is asked in a thread, and left
    there when it stays silent. A list may take longer.
    """
    seconds = LISTING_S if name in ("find", "glob", "ls") else ANSWER_S
    if isinstance(system, AsyncFileSystem):
        return _polite(system, lambda: getattr(system, name)(*given, **named, timeout=seconds))
    if isinstance(system, LocalFileSystem | MemoryFileSystem):
        return getattr(system, name)(*given, **named)
    answer: Future[Any] = Future()

    def act() -> None:
        try:
            answer.set_result(_polite(system, lambda: getattr(system, name)(*given, **named)))
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=act, name=f"asking {name}", daemon=True).start()
    try:
        return answer.result(seconds)
    except TimeoutError:
        if answer.done():
            raise
        raise TimeoutError(f"no answer within {seconds:.0f} s") from None


def _polite(system: Any, act: Callable[[], Result]) -> Result:
    with _errors():
        try:
            return act()
        except PermissionError:
            if not _renew(system):
                raise
            return act()


def _renew(system: Any) -> bool:
    """Have the client read its credentials again: they may have been revoked and renewed. Not at each of many
    refusals.
    """
    if not is_s3(system):
        return False
    with _lock:
        if time.monotonic() - _renewed.get(id(system), -AGAIN_S) < AGAIN_S:
            return True  # another thread has just done it
        _renewed[id(system)] = time.monotonic()
    system.connect(refresh=True)
    return True


@contextmanager
def _errors() -> Iterator[None]:
    """Errors of S3's client as OSErrors."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("botocore", "aiobotocore", "aiohttp"):
            raise
        raise OSError(f"{type(error).__name__}: {error}") from error


@contextmanager
def writing(system: Any, path: str) -> Iterator[IO[bytes]]:
    """A binary file that is put at `path` when the block ends without an error. It is collected here first: a
    store commits what was sent when its file is closed, by an error as well.
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


def make_parent(system: Any, path: str) -> None:
    """The folder of `path`, where a store has folders; S3 would make a bucket of a mistyped name."""
    if is_s3(system):
        return
    folder = path.rsplit("/", 1)[0]
    for attempt in range(1, MOST_RACES + 1):
        try:
            return ask(system, "makedirs", folder, exist_ok=True)
        except Exception:  # each kind of store has errors of its own
            # somebody else may have made it, or a folder above it, since the client last listed what is there
            system.invalidate_cache()
            if ask(system, "isdir", folder):
                return None
            if attempt == MOST_RACES:
                raise


def fetch(system: Any, path: str, target: Path) -> None:
    """Copy a file to a local path."""
    size = ask(system, "size", path) or 0
    ask(system, "get_file", path, str(target), num_bytes=size)


def read(system: Any, path: str) -> bytes:
    """The whole of a file; FileNotFoundError when there is none."""
    try:
        return ask(system, "cat_file", path, num_bytes=IN_MEMORY)
    except TimeoutError:
        size = ask(system, "size", path)  # larger than that took; or the store is silent, which this tells
        if size <= IN_MEMORY:
            raise
        return ask(system, "cat_file", path, num_bytes=size)


def remove(system: Any, path: str) -> None:
    """Remove a file or all below a folder, one by one: some servers refuse S3's removal of many at once."""
    if not is_s3(system):
        ask(system, "rm", path, recursive=True)
        return
    found = ask(system, "find", path)
    for one in found:
        with suppress(FileNotFoundError):
            ask(system, "rm_file", one)


def open_system(url: str) -> tuple[Any, str]:
    """fsspec's filesystem of `url` and the path in it."""
    return fsspec.core.url_to_fs(url, **options(url))
