"""Prefect's database as sqlite, whose writers wait for each other.

SQLite has one writer at a time. A transaction that has read cannot begin to write once another has written in
between: it fails at once with "database is locked", and no timeout helps (sqlite.org/lang_transaction.html,
"BEGIN IMMEDIATE"). Prefect 3.8 begins most of its transactions that way, so that now and then a page says
"Unknown error" where a run should start. Here each of them asks for the writer's place when it begins.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from prefect.server.database.configurations import AioSqliteConfiguration
from prefect.server.database.dependencies import set_database_config
from prefect.server.utilities.database import get_dialect
from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL
from sqlalchemy.ext.asyncio import AsyncSession, AsyncSessionTransaction


class OneWriter(AioSqliteConfiguration):
    """As Prefect's own; every transaction may write."""

    @asynccontextmanager
    async def begin_transaction(
        self, session: AsyncSession, with_for_update: bool = False
    ) -> AsyncGenerator[AsyncSessionTransaction, None]:
        async with super().begin_transaction(session, with_for_update=True) as transaction:
            yield transaction


def one_writer() -> None:
    """Have the server of this process, not yet started, use `OneWriter` where its database is sqlite."""
    url = PREFECT_API_DATABASE_CONNECTION_URL.value()
    if get_dialect(url).name == "sqlite":
        set_database_config(OneWriter(connection_url=url))
