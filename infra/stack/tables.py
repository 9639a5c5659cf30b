"""The tables of a new Prefect database, copied from the last one of the same Prefect version on this machine.

Prefect makes them by a hundred migrations, five seconds of a store's first command. Here the first such
database is kept, as it is before any server has used it, under $XDG_CACHE_HOME/atelier.
"""

import asyncio
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import prefect
from prefect.server.database import provide_database_interface
from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL
from sqlalchemy.engine import make_url

from atelier.engine.storage import create_exclusive, write_bytes
from atelier.infra.cache import cache_folder


def make_tables() -> None:
    """Put Prefect's tables where the server of this process, not yet started, will look for them, unless
    something is there. Without a whole copy its migrations make them, as without this.
    """
    path = database_file()
    if path is None or path.exists():
        return
    kept = cache_folder() / f"prefect-{prefect.__version__}.db"
    if is_whole(kept):
        create_exclusive(str(path), kept.read_bytes())
        return
    asyncio.run(provide_database_interface().create_db())
    with suppress(OSError, sqlite3.Error), closing(sqlite3.connect(path)) as made:
        write_bytes(str(kept), made.serialize())


def database_file() -> Path | None:
    """The file of Prefect's database; None where it is none of SQLite's, or in memory."""
    url = make_url(PREFECT_API_DATABASE_CONNECTION_URL.value() or "")
    name = url.database or ""
    is_file = url.get_backend_name() == "sqlite" and name.startswith("/")
    return Path(name) if is_file else None


def is_whole(path: Path) -> bool:
    """True when the file is a sound SQLite database whose migrations were run."""
    if not path.exists():
        return False
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as kept:
            [said] = kept.execute("PRAGMA quick_check").fetchone()
            [count] = kept.execute("SELECT count(*) FROM alembic_version").fetchone()
    except sqlite3.Error:
        return False
    return said == "ok" and count == 1
