"""A transaction of Prefect's server that has read may write, even after other writes in between."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest
from prefect.server.database.configurations import AioSqliteConfiguration
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from atelier.infra.stack.prefect_server import OneWriter


async def count_twice(config: AioSqliteConfiguration, patience_s: float) -> int:
    """What a counter in `config`'s database says after two transactions that read it, then add one each. The
    first writes when the second has, or cannot for `patience_s`.
    """
    engine = await config.engine()
    async with engine.begin() as setup:
        await setup.execute(text("CREATE TABLE counter (value INTEGER)"))
        await setup.execute(text("INSERT INTO counter VALUES (0)"))
    has_read, has_written = asyncio.Event(), asyncio.Event()

    async def add(first: bool) -> None:
        session = await config.session(engine)
        async with session, config.begin_transaction(session):
            value = (await session.execute(text("SELECT value FROM counter"))).scalar_one()
            if first:
                has_read.set()
                with suppress(TimeoutError):
                    await asyncio.wait_for(has_written.wait(), patience_s)
            await session.execute(text("UPDATE counter SET value = :new"), {"new": value + 1})

    async def second() -> None:
        await has_read.wait()
        await add(first=False)
        has_written.set()

    try:
        await asyncio.gather(add(first=True), second())
        async with engine.connect() as connection:
            return int((await connection.execute(text("SELECT value FROM counter"))).scalar_one())
    finally:
        await engine.dispose()


def test_writers_wait_for_each_other(tmp_path: Path) -> None:
    config = OneWriter(connection_url=f"sqlite+aiosqlite:///{tmp_path}/a.db")
    assert asyncio.run(count_twice(config, 0.5)) == 2


def test_prefects_own_transactions_fail_at_once(tmp_path: Path) -> None:
    """The reason for `OneWriter`: when this fails, it can go."""
    config = AioSqliteConfiguration(connection_url=f"sqlite+aiosqlite:///{tmp_path}/a.db")
    with pytest.raises(OperationalError, match="database is locked"):
        asyncio.run(count_twice(config, 30.0))
