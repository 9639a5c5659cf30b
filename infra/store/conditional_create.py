"""Exclusive creation of files on every kind of store; the basis of leases.

Local folders and memory use engine/io/storage.py. Object stores use a table in the database of
ATELIER_LEASES: its primary key decides, and any process can complete the copy in the store. Without a
database they use a conditional put (If-None-Match: *), if a probe shows that the store supports it.
"""

import errno
import os
import secrets
import threading
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from atelier.engine.config.error import ConfigError
from atelier.engine.io.remote import ask, is_s3
from atelier.engine.io.storage import (
    TEMPORARY,
    exists,
    filesystem,
    has_exclusive_create,
    join,
    read_bytes,
    remove,
    write_bytes,
)
from atelier.engine.io.storage import create_exclusive as create_in_folder

if TYPE_CHECKING:  # 0.3 s to import; local stores do not need it
    import sqlalchemy as sql

Found = TypeVar("Found")
LEASES = "ATELIER_LEASES"  # postgresql+psycopg://user:password@host/database
PATIENCE_S = 60.0  # for a database that restarts
_lock = threading.Lock()
_known: dict[str, bool] = {}  # roots of stores: whether they honour a conditional put


class Created(Protocol):
    """A row of the table: the file that was created, and the mark of who created it."""

    @property
    def content(self) -> bytes: ...

    @property
    def by(self) -> str: ...


def create_exclusive(url: str, data: bytes) -> bool:
    """Create `url` with `data` unless it exists: True for exactly one of concurrent callers; readers never
    see partial content. Raises ConfigError when the store offers no exclusive creation.
    """
    if has_exclusive_create(url):
        return create_in_folder(url, data)
    if register := _register():
        return register.create(url, data)
    check_exclusive(url)
    return _put_new(url, data)


def check_exclusive(url: str) -> None:
    """Raises ConfigError unless files can be created exclusively in the store of `url`."""
    if has_exclusive_create(url):
        return
    if register := _register():
        register.check()
        return
    root = "/".join(url.split("/")[:3])  # s3://bucket
    with _lock:
        if root not in _known:
            _known[root] = _honours(url)
    if not _known[root]:
        raise ConfigError(
            url,
            "the store has no conditional put, so that two gangs could train one model",
            f"set {LEASES} to a PostgreSQL database that all workers reach: "
            "postgresql+psycopg://user:password@host/database",
        )


def unlist(url: str) -> None:
    """Remove the database rows of everything under `url`, before deleting it."""
    if not has_exclusive_create(url) and (register := _register()):
        register.unlist(url)


def _put_new(url: str, data: bytes) -> bool:
    system, path = filesystem(url)
    try:
        ask(system, "pipe_file", path, data, mode="create")
        return True
    except FileExistsError:
        return read_bytes(url) == data  # a retried put finds its own content if the first answer was lost


def _honours(url: str) -> bool:
    """Whether the second of two conditional puts is refused."""
    if not is_s3(filesystem(url)[0]):  # elsewhere fsspec checks, then writes: not atomic
        return False
    probe = join(url, f"{TEMPORARY}{secrets.token_hex(8)}")
    try:
        return _put_new(probe, b"first") and not _put_new(probe, b"second")
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        return False
    finally:
        remove(probe)


class Register:
    """Database table of created files with their content. Raises ConfigError for an unusable address."""

    def __init__(self, address: str) -> None:
        import sqlalchemy as sql  # 0.3 s to import; local stores do not need it
        from sqlalchemy import exc, pool

        try:
            self._engine = sql.create_engine(address, poolclass=pool.NullPool)
        except (exc.ArgumentError, ImportError) as error:
            raise ConfigError(
                LEASES, f"cannot be used ({error})", "postgresql+psycopg://user:password@host/database"
            ) from None
        self._table = sql.Table(
            "atelier_created",
            sql.MetaData(),
            sql.Column("url", sql.Text, primary_key=True),
            sql.Column("content", sql.LargeBinary, nullable=False),
            sql.Column("by", sql.Text, nullable=False),
        )
        self._is_made = False

    def create(self, url: str, data: bytes) -> bool:
        """As `create_exclusive`. A later caller completes the first one's file when it is missing."""
        mine = secrets.token_hex(16)
        row = self._act(lambda connection: self._insert(connection, url, data, mine))
        if row.by == mine or not exists(url):
            write_bytes(url, bytes(row.content))
        return row.by == mine

    def check(self) -> None:
        """Raises ConfigError unless the database answers and is writable."""
        self._act(lambda connection: None, patience_s=0)

    def unlist(self, url: str) -> None:
        """Remove the rows of `url` and everything below it."""
        below = self._table.c.url.startswith(url.rstrip("/") + "/", autoescape=True)
        self._act(
            lambda connection: connection.execute(
                self._table.delete().where(below | (self._table.c.url == url))
            )
        )

    def _insert(self, connection: "sql.Connection", url: str, data: bytes, mine: str) -> Created:
        find = self._table.select().where(self._table.c.url == url)
        row = connection.execute(find).one_or_none()
        if row is None:
            connection.execute(self._table.insert().values(url=url, content=data, by=mine))
            row = connection.execute(find).one()
        return cast(Created, row)

    def _act(self, act: "Callable[[sql.Connection], Found]", patience_s: float = PATIENCE_S) -> Found:
        """One transaction, retried while the database is unreachable or another process was faster."""
        from sqlalchemy import exc as errors
        from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential

        tries = Retrying(
            retry=retry_if_exception_type((errors.OperationalError, errors.IntegrityError)),
            stop=stop_after_delay(patience_s),
            wait=wait_exponential(multiplier=0.05, max=2),
            reraise=True,
        )
        try:
            return tries(lambda: self._once(act))
        except errors.SQLAlchemyError as error:
            reason = str(getattr(error, "orig", error)).strip().splitlines()[0]
            raise ConfigError(
                LEASES,
                f"the database of leases refuses the request ({reason})",
                "check that it runs and that its user may write",
            ) from None

    def _once(self, act: "Callable[[sql.Connection], Found]") -> Found:
        with self._engine.begin() as connection:
            if not self._is_made:
                self._table.metadata.create_all(connection)
            result = act(connection)
        self._is_made = True
        return result


@cache
def _opened(address: str) -> Register:
    return Register(address)


def _register() -> Register | None:
    address = os.environ.get(LEASES)
    return _opened(address) if address else None
