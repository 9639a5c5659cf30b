"""Identity of external input files: sorted (path, sha256); remote objects by checksum, or
etag and size. Cached by size, times and inode.
"""

import hashlib
import json
import os
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from stat import S_ISREG

from atelier.engine.config.base import Json, fingerprint
from atelier.engine.config.error import DataError, check_utf8, printable
from atelier.engine.io.hub import without_commit
from atelier.engine.io.machine import versions
from atelier.engine.io.source_files import BLOCK, WEB, WEB_LIBRARY, content_id, reading
from atelier.engine.io.storage import is_local, local_path, write_bytes
from atelier.engine.io.user_folders import cache_folder

Cache = dict[str, list[int | str]]  # path -> size, times and inode, then its digest
YOUNG_S = 2.0  # a file changed this recently may change again within its timestamp's resolution


def contents_of(urls: list[str], *, place: str = "", most: int = 0) -> list[tuple[str, str]]:
    """(url, digest) of every file, sorted by url; local files by sha256 of their bytes. Errors name `place`.

    Raises DataError for a file that cannot be read, is no regular file or, with `most`, is empty or has more
    than `most` bytes.
    """
    kept = cache_folder() / "contents.json"
    cache: Cache = {}
    with suppress(OSError, ValueError):
        cache = dict(_parsed(kept.read_text()))
    before = dict(cache)
    for url in urls:
        check_utf8(url, place or "source", "the file name")
    result = [(url, _content(url, cache, place, most)) for url in sorted(urls)]
    if cache != before:
        with suppress(OSError):
            write_bytes(str(kept), json.dumps(cache).encode())
    return result


@lru_cache(maxsize=1)
def _parsed(text: str) -> Cache:
    """The same text is read for each source of a plan."""
    return json.loads(text)


def _content(url: str, cache: Cache, place: str, most: int) -> str:
    with reading(url, place or url):
        is_here = is_local(url)
    return _local(url, cache, place, most) if is_here else content_id(url, place)


def _local(url: str, cache: Cache, place: str, most: int) -> str:
    path, shown = local_path(url), f"{place}{': ' if place else ''}{printable(url)}"
    try:
        stat = path.stat()
        key = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
        hit = cache.get(str(path))
        if hit and hit[:4] == key:
            return str(hit[4])
        if not S_ISREG(stat.st_mode):
            raise DataError(f"{shown}: is not a regular file; give a file, or a folder or glob of files")
        if most and not stat.st_size:
            raise DataError(f"{shown}: is empty")
        if most and stat.st_size > most:
            raise DataError(f"{shown}: has {stat.st_size} bytes, more than the limit of {most}")
        digest = _digest(path, stat.st_size)
    except OSError as error:
        raise DataError(f"{shown}: cannot be read ({error.strerror})") from None
    if time.time() - max(stat.st_mtime, stat.st_ctime) > YOUNG_S:
        cache[str(path)] = [*key, digest]

    return digest


def _digest(path: Path, size: int) -> str:
    """sha256 of the file's first `size` bytes, since some system files never end; opened non-blocking."""
    digest = hashlib.sha256()
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        while size and (block := file.read(min(BLOCK, size))):
            digest.update(block)
            size -= len(block)
    return digest.hexdigest()


def identity_of(contents: list[tuple[str, str]]) -> dict[str, Json]:
    """A set of files as identity: how many, and one digest over (path below their common folder, digest); of
    web pages also the version of the library that extracts their text.
    """
    named = [(without_commit(url), digest) for url, digest in contents]
    folder = os.path.commonpath([os.path.dirname(name) for name, _ in named]) if named else ""
    listed = [[name.removeprefix(folder).lstrip("/"), digest] for name, digest in named]
    library = versions(WEB_LIBRARY) if any(url.endswith(WEB) for url, _ in named) else {}
    return {"files": len(listed), "content": fingerprint(sorted(listed)), **library}
