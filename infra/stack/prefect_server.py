"""Prefect's server behind a request filter: `python -m atelier.infra.stack.prefect_server <port>`, in a
container `python -m atelier.infra.stack.prefect_server <port> <address to listen on> <its own URLs>`.

Prefect's middleware checks the password but accepts any host name. The filter first refuses requests from
pages of other sites (CSRF) and under foreign host names (DNS rebinding). Writers of a sqlite database queue;
its tables are copied from cached ones of the same version of Prefect.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

import uvicorn
from prefect.server.api.server import create_app
from prefect.server.database import provide_database_interface
from prefect.server.database.configurations import AioSqliteConfiguration
from prefect.server.database.dependencies import set_database_config
from prefect.server.utilities.database import get_dialect
from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL, get_current_settings
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncSession, AsyncSessionTransaction

from atelier.engine.io.request_filter import Application, RequestFilter
from atelier.infra.stack.database_check import PREFECT, cache_tables, copy_tables
from atelier.infra.stack.settings import HOST, own_origins

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application


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
    if path is None or path.exists() or copy_tables(path, PREFECT):
        return
    asyncio.run(provide_database_interface().create_db())
    cache_tables(path, PREFECT)


def database_file() -> Path | None:
    """File of Prefect's database; None when it is not sqlite, or in memory."""
    url = make_url(PREFECT_API_DATABASE_CONNECTION_URL.value() or "")
    name = url.database or ""
    is_file = url.get_backend_name() == "sqlite" and name.startswith("/")
    return Path(name) if is_file else None


def filtered(own: Iterable[str]) -> "ASGI3Application":
    """Prefect's server as an application that answers only to its own URLs."""
    return cast("ASGI3Application", RequestFilter(cast(Application, create_app(final=True)), own))


def main(port: int, host: str = HOST, *own: str) -> None:
    """Serve until SIGTERM, as `prefect server start`; all else is configured by PREFECT_... variables."""
    server = get_current_settings().server
    one_writer()
    make_tables()
    uvicorn.run(
        filtered(own or own_origins(port)),
        host=host,
        port=port,
        log_level=server.logging_level.lower(),
        timeout_keep_alive=server.api.keepalive_timeout,
        ws_ping_interval=server.api.websocket_ping_interval,
        ws_ping_timeout=server.api.websocket_ping_timeout,
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
