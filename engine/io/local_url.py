"""Local paths and their URLs. Anything without `://` is a local path, taken literally, except that a leading
`~` is the home folder. Torch-free.
"""

import os
import re
from pathlib import Path
from urllib.parse import quote, unquote_to_bytes

from atelier.engine.io.user_folders import with_home

FILE = "file://"
URL = re.compile(r"(^|::)[A-Za-z][A-Za-z0-9+.-]+://")  # one letter is a drive to fsspec
ASIDE = re.compile(r"[?%\x00-\x1f\x7f]")  # not allowed unquoted in a database's URL


def is_path(text: str) -> bool:
    """Whether `text` is a local path and not a URL, chained or not."""
    return "://" not in text or URL.search(text) is None


def check_chain(url: str) -> None:
    """Raise ValueError for a chained URL that begins with a path: fsspec would read only that path."""
    first, is_chained, _ = url.partition("::")
    if is_chained and (first.startswith(FILE) or ("/" in first and is_path(first))):
        raise ValueError(f"a chain must begin with a kind of storage, not with the path {first}")


def absolute(path: str) -> str:
    """An absolute path; relative ones begin at the working directory."""
    if not path.startswith("/"):
        path = str(Path.cwd() / with_home(path))
    return path.rstrip("/") or "/"


def file_url(path: str | Path) -> str:
    """The file:// URL of an absolute path with any characters."""
    return FILE + quote(os.fsencode(path))


def path_of(url: str) -> str | None:
    """The path of a local path or file:// URL; None for other URLs."""
    if is_path(url):
        return url
    return os.fsdecode(unquote_to_bytes(url[len(FILE) :])) if url.startswith(f"{FILE}/") else None


def sqlite_url(path: str | Path, driver: str = "sqlite") -> str:
    """SQLAlchemy's URL of a database at an absolute path. If characters need quoting, slashes are quoted too,
    because MLflow creates the folder of the unquoted URL, which then is the root.
    """
    text = str(path)
    if ASIDE.search(text) is None:
        return f"{driver}:///{text}"
    return f"{driver}:////{quote(text[1:], safe='')}"


def sqlite_file(url: str) -> Path | None:
    """The absolute path of a sqlite database's URL; None for other databases, and for one in memory."""
    scheme, _, rest = url.partition(":///")
    if scheme.partition("+")[0] != "sqlite" or rest.startswith((":memory:", "file:")) or not rest:
        return None
    return Path(os.path.abspath(os.fsdecode(unquote_to_bytes(rest.partition("?")[0]))))
