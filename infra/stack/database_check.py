"""Check a sqlite database before its library would wait for it: not a database, not writable, tables of
another version; and create one as a copy of empty tables. Imports neither MLflow nor Prefect.
"""

import os
import re
import shlex
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from atelier.engine.config.error import ConfigError
from atelier.engine.io.local_url import file_url, sqlite_url
from atelier.engine.io.storage import create_exclusive, write_bytes
from atelier.engine.io.user_folders import cache_folder

WAIT_S = 30.0  # for another process's transaction
LOOK_S, STILL_S = 0.1, 3.0
PASSING = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
REVISION = re.compile(r"""^(down_)?revision\b[^=]*= *["'](\w+)["']""", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Tables:
    """A library's tables. `place`: beginning of errors; `begun`: what happens after the database is moved
    away; `upgrade`: the command that upgrades older tables, '' if the library does so itself.
    """

    owner: str
    package: str
    migrations: str  # folder in the package
    place: str
    begun: str
    upgrade: str = ""


MLFLOW = Tables(
    owner="MLflow",
    package="mlflow",
    migrations="store/db_migrations/versions",
    place="tracker",
    begun="a new one is created; tracker=none runs without a tracker",
    upgrade="mlflow db upgrade",
)
PREFECT = Tables(
    owner="Prefect",
    package="prefect",
    migrations="server/database/_migrations/versions/sqlite",
    place="PREFECT_HOME",
    begun="a new one is created, without the pages of earlier runs",
)


def connected(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=WAIT_S, isolation_level=None)


def check_database(
    path: Path,
    tables: Tables,
    still_s: float = STILL_S,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Raises ConfigError, with a way out, for a database that its library can never use. Older tables are
    read until they stay the same for `still_s` seconds: another process may be creating them.
    """
    if not path.exists():
        return
    if not os.access(path, os.R_OK | os.W_OK) or not os.access(path.parent, os.W_OK):
        raise unusable(path, tables, "it cannot be written")
    known, before, since = known_revisions(tables), [""], time.monotonic()
    while (found := _revisions(path, tables)) and known:
        is_older = all(name in known for name in found)
        if is_older and (not tables.upgrade or known[found[0]]):
            return
        if found != before:
            before, since = found, time.monotonic()
        elif not is_older or time.monotonic() - since >= still_s:
            raise _other_version(path, tables, found[0], is_older)
        sleep(LOOK_S)


def _other_version(path: Path, tables: Tables, found: str, is_older: bool) -> ConfigError:
    problem = f"has tables of {'an older' if is_older else 'another'} version of {tables.owner} ({found})"
    command = f"{tables.upgrade} {shlex.quote(sqlite_url(path))}"
    way_out = (
        f"back it up and upgrade it: cp {_word(path)} {_word(path, '.backup')} && {command}"
        if is_older
        else f"install the {tables.owner} version that made it, or {_moved(path, tables)}"
    )
    return ConfigError(tables.place, f"{tables.owner}'s database {path} {problem}", way_out)


def unusable(path: Path, tables: Tables, why: str) -> ConfigError:
    problem = f"{tables.owner}'s database {path} cannot be used: {why}"
    return ConfigError(tables.place, problem, f"repair it, or {_moved(path, tables)}")


def known_revisions(tables: Tables) -> dict[str, bool]:
    """Versions of the tables that the installed library knows, each with whether it is the newest. Read from
    its migrations, because importing it takes two seconds.
    """
    spec = find_spec(tables.package)
    if spec is None or spec.origin is None:
        return {}
    files = (Path(spec.origin).parent / tables.migrations).glob("*.py")
    found = [pair for file in files for pair in REVISION.findall(file.read_text())]
    older = {name for is_down, name in found if is_down}
    return {name: name not in older for is_down, name in found if not is_down}


def tighten(path: Path) -> None:
    """Restrict a file, and sqlite's files beside it, to its owner. A group that may write to the folder keeps
    its access: it could replace the files anyway.
    """
    for end in ("", "-wal", "-shm", "-journal"):
        with suppress(OSError):  # missing, or another user's
            file = path.with_name(path.name + end)
            about, folder = file.stat(), file.parent.stat()
            is_shared = bool(folder.st_mode & 0o020) and about.st_gid == folder.st_gid
            mode = about.st_mode & 0o700
            mode |= (mode & 0o600) >> 3 if is_shared else 0
            if not file.is_symlink() and about.st_mode & 0o777 != mode:
                file.chmod(mode)


def cached_tables(tables: Tables) -> Path:
    """Where empty tables of the installed version are cached: its migrations take seconds."""
    return cache_folder() / f"{tables.package}-{version(tables.package)}.db"


def copy_tables(path: Path, tables: Tables) -> bool:
    """Create the database as a copy of the cached tables; False if it exists or none are cached intact."""
    kept = cached_tables(tables)
    return not path.exists() and is_intact(kept) and create_exclusive(str(path), kept.read_bytes())


def cache_tables(path: Path, tables: Tables, without: tuple[str, ...] = ()) -> None:
    """Cache the tables of a database that its library has just created, `without` the rows of some, unless
    rows refer to those.
    """
    kept = cached_tables(tables)
    if is_intact(kept):
        return
    with (
        suppress(OSError, sqlite3.Error),
        closing(connected(path)) as made,
        closing(sqlite3.connect(":memory:", isolation_level=None)) as copy,
    ):
        made.backup(copy)
        for table in without:
            copy.execute(f"DELETE FROM {table}")
        if copy.execute("PRAGMA foreign_key_check").fetchone():  # a process has begun to use it
            return
        copy.execute("VACUUM")
        write_bytes(str(kept), copy.serialize())


def is_intact(path: Path) -> bool:
    """Whether a file is an intact sqlite database whose migrations were run."""
    if not path.exists():
        return False
    try:
        with closing(sqlite3.connect(f"{file_url(path)}?mode=ro&immutable=1", uri=True)) as kept:
            [said] = kept.execute("PRAGMA quick_check").fetchone()
            [count] = kept.execute("SELECT count(*) FROM alembic_version").fetchone()
    except sqlite3.Error:
        return False
    return said == "ok" and count == 1


def _revisions(path: Path, tables: Tables) -> list[str]:
    """The versions of the tables; [] without tables, or while another process locks them."""
    try:
        with closing(connected(path)) as database:
            there = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
            is_made = "alembic_version" in there
            rows = database.execute("SELECT version_num FROM alembic_version") if is_made else ()
            return [name for (name,) in rows]
    except sqlite3.Error as error:
        if error.sqlite_errorcode in PASSING:
            return []
        raise unusable(path, tables, str(error)) from None


def _moved(path: Path, tables: Tables) -> str:
    return f"move it away (mv {_word(path)} {_word(path, '.other')}): {tables.begun}"


def _word(path: Path, end: str = "") -> str:
    return shlex.quote(f"{path}{end}")
