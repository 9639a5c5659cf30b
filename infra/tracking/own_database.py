"""MLflow's sqlite database in a store: private, checked, and with addresses that follow the store. Does not
import MLflow.

MLflow keeps the absolute address of every file. When a store was moved, renamed or copied, `follow` corrects
the addresses below its former root, and no others, in one transaction.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import unquote

from atelier.engine.config.error import ConfigError
from atelier.engine.io.local_url import file_url, path_of, sqlite_file, sqlite_url
from atelier.engine.io.storage import is_local, join
from atelier.infra.stack.database_check import (
    MLFLOW,
    check_database,
    connected,
    copy_tables,
    tighten,
    unusable,
)
from atelier.infra.stack.settings import DATABASE, FILES, mlflow_folder
from atelier.infra.store.store import Store

ADDRESSES = (  # of files that MLflow reads and writes
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
)
TEXTS = (  # readable texts: tags with an address, pages with one in `...`
    ("tags", "value"),
    ("experiment_tags", "value"),
    ("logged_model_tags", "tag_value"),
    ("model_version_tags", "value"),
    ("registered_model_tags", "value"),
    ("datasets", "dataset_source"),
    ("registered_models", "description"),
    ("model_versions", "description"),
)


def own_database(store: Store) -> Path:
    """The file of the store's database; for remote stores in the stack's folder."""
    return mlflow_folder(store.root) / DATABASE


def own_files(store: Store) -> str:
    """URL of the folder for the runs' files."""
    return file_url(join(store.root, FILES)) if is_local(store.root) else join(store.root, FILES)


def settle(store: Store) -> str:
    """Create the store's database, or make it private and correct its addresses. Returns its URI. Raises
    ConfigError if it cannot be used.
    """
    path = own_database(store)
    if unquote(str(path)) != str(path):  # for plain paths too: pyfunc.load_model uses one
        problem = f"MLflow reads {store.root} as {unquote(store.root)} and could load no model from there"
        raise ConfigError("tracker", problem, "set ATELIER_ROOT to a folder without %, or tracker=none")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not copy_tables(path, MLFLOW):
            os.close(os.open(path, os.O_RDONLY | os.O_CREAT, 0o600))  # MLflow fills an empty one
    except OSError as error:
        raise unusable(path, MLFLOW, error.strerror or str(error)) from None
    tighten(path)
    check_database(path, MLFLOW)
    follow(store)
    return sqlite_url(path)


def check_uri(uri: str) -> None:
    """Raises ConfigError for the URI of a sqlite database that MLflow can never use."""
    path = sqlite_file(uri)
    if path is not None:
        check_database(path, MLFLOW)


def follow(store: Store) -> None:
    """Correct the addresses in the database of a store that was moved. Raises ConfigError if it cannot be
    used.
    """
    path = own_database(store)
    if not is_local(store.root) or not path.exists():
        return
    root = Path(store.root)
    try:
        with closing(connected(path)) as database:
            if not any(_former_roots(database, root)):
                return
            with database:
                database.execute("BEGIN IMMEDIATE")
                for former in list(_former_roots(database, root)):
                    _correct(database, former, str(root))
    except sqlite3.Error as error:
        raise unusable(path, MLFLOW, str(error)) from None


def _columns(database: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in database.execute(f"PRAGMA table_info({table})")]


def _former_roots(database: sqlite3.Connection, root: Path) -> Iterator[str]:
    """Former roots of the store: parents of experiment folders `<root>/mlartifacts/<name>` that are now here.
    Other missing roots are left alone: they may come back, like a disk.
    """
    if "artifact_location" not in _columns(database, "experiments"):
        return
    seen = set()
    for (location,) in database.execute("SELECT artifact_location FROM experiments").fetchall():
        base, folder, name = (path_of(location or "") or "").rpartition(f"/{FILES}/")
        is_here = bool(folder and name) and (root / FILES / name).is_dir()
        if is_here and base not in seen and not _is_same(base, root):
            seen.add(base)
            yield base


def _is_same(one: str, other: Path) -> bool:
    with suppress(OSError):
        return os.path.samefile(one, other)
    return one == str(other)


def _correct(database: sqlite3.Connection, former: str, root: str) -> None:
    for table, column in ADDRESSES:
        if column not in _columns(database, table):
            continue
        for (address,) in database.execute(f"SELECT DISTINCT {column} FROM {table}").fetchall():
            old = path_of(address or "")
            if old is None or not old.startswith(f"{former}/") or old.startswith(f"{root}/"):
                continue
            new = root + old[len(former) :]
            if os.path.exists(new) or not os.path.exists(old):
                database.execute(
                    f"UPDATE {table} SET {column} = ? WHERE {column} = ?", (file_url(new), address)
                )
    for table, column in TEXTS:
        if column not in _columns(database, table):
            continue
        database.execute(
            f"UPDATE {table} SET {column} = ? || substr({column}, ?) WHERE substr({column}, 1, ?) = ?"
            f" AND substr({column}, 1, ?) != ?",  # a store may move below its former root
            (f"{root}/", len(former) + 2, len(former) + 1, f"{former}/", len(root) + 1, f"{root}/"),
        )
        database.execute(
            f"UPDATE {table} SET {column} = replace({column}, ?, ?) WHERE instr({column}, ?)"
            f" AND NOT instr({column}, ?)",
            (f"`{former}/", f"`{root}/", f"`{former}/", f"`{root}/"),
        )
