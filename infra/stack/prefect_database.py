"""Prefect's sqlite database: serialize writers, and create the tables by copying a cached database of the
same Prefect version.
"""

import asyncio
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

import prefect
from prefect.server.database import provide_database_interface
from prefect.server.database.configurations import AioSqliteConfiguration
from prefect.server.database.dependencies import set_database_config
from prefect.server.utilities.database import get_dialect
from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncSession, AsyncSessionTransaction

from atelier.engine.io.local_url import file_url
from atelier.engine.io.storage import create_exclusive, write_bytes
from atelier.engine.io.user_folders import cache_folder


class OneWriter(AioSqliteConfiguration):
    """Prefect's configuration, with every transaction opened for writing, so that writers queue."""

    @asynccontextmanager
    async def begin_transaction(
        self, session: AsyncSession, with_for_update: bool = False
    ) -> AsyncGenerator[AsyncSessionTransaction, None]:
        async with super().begin_transaction(session, with_for_update=True) as transaction:
            yield transaction


def one_writer() -> None:
    """Make this process's server, not yet started, use `OneWriter` when its database is sqlite."""
    url = PREFECT_API_DATABASE_CONNECTION_URL.value()
    if get_dialect(url).name == "sqlite":
        set_database_config(OneWriter(connection_url=url))


def make_tables() -> None:
    """Create the database of this process's server, not yet started, unless it exists: by copying the cached
    one or, without an intact one, by Prefect's migrations, whose result is then cached.
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
    """File of Prefect's database; None when it is not sqlite, or in memory."""
    url = make_url(PREFECT_API_DATABASE_CONNECTION_URL.value() or "")
    name = url.database or ""
    is_file = url.get_backend_name() == "sqlite" and name.startswith("/")
    return Path(name) if is_file else None


def is_whole(path: Path) -> bool:
    """True when the file is an intact sqlite database whose migrations were run."""
    if not path.exists():
        return False
    try:
        with closing(sqlite3.connect(f"{file_url(path)}?mode=ro&immutable=1", uri=True)) as kept:
            [said] = kept.execute("PRAGMA quick_check").fetchone()
            [count] = kept.execute("SELECT count(*) FROM alembic_version").fetchone()
    except sqlite3.Error:
        return False
    return said == "ok" and count == 1
