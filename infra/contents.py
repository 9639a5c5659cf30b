"""Identity of input from outside: sorted (path, sha256); remote objects by etag or checksum and size. Cached
by size, times and inode.
"""

import hashlib
import json
import os
import time
from contextlib import suppress
from typing import Any

from engine.spec.base import fingerprint
from engine.spec.error import DataError
from engine.spec.source_files import content_id
from engine.storage import is_local, local_path, write_bytes
from infra.cache import cache_folder

YOUNG_S = 2.0  # a file changed so recently may change again within its time stamp's resolution


def contents_of(urls: list[str]) -> list[tuple[str, str]]:
    """(url, digest) of every file, sorted by url. Local files by sha256 of their bytes."""
    place = cache_folder() / "contents.json"
    cache: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        cache = json.loads(place.read_text())
    known = len(cache)
    result = [(url, _local(url, cache) if is_local(url) else content_id(url)) for url in sorted(urls)]
    if len(cache) != known or cache.pop("changed", None):
        with suppress(OSError):
            write_bytes(str(place), json.dumps(cache).encode())
    return result


def _local(url: str, cache: dict[str, Any]) -> str:
    path = local_path(url)
    try:
        stat = path.stat()
        key = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
        hit = cache.get(str(path))
        if hit and hit[:4] == key:
            return hit[4]
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{url}: cannot be read ({error.strerror})") from None
    if time.time() - max(stat.st_mtime, stat.st_ctime) > YOUNG_S:
        cache[str(path)] = [*key, digest]
        cache["changed"] = True
    return digest


def identity_of(contents: list[tuple[str, str]]) -> dict[str, Any]:
    """A set of files as identity: how many, and one digest over (path below their common folder, digest)."""
    folder = os.path.commonpath([os.path.dirname(url) for url, _ in contents]) if contents else ""
    listed = [[url.removeprefix(folder).lstrip("/"), digest] for url, digest in contents]
    return {"files": len(listed), "content": fingerprint(sorted(listed))}
