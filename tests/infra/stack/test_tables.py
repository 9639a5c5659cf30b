"""The tables of Prefect and MLflow are made by their migrations once, and then copied."""

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import prefect
import pytest

from atelier import IMPORT_ROOT

MAKE = """
import json
from prefect.server.database.interface import PrefectDBInterface
from atelier.infra.stack.prefect_server import make_tables
ran = []
migrate = PrefectDBInterface.run_migrations_upgrade
async def count(self):
    ran.append(1)
    await migrate(self)
PrefectDBInterface.run_migrations_upgrade = count
make_tables()
print(json.dumps({"migrated": len(ran)}))
"""


def make(home: Path, cache: Path) -> int:
    """How often migrations ran for a new database in `home`."""
    home.mkdir()
    settings = {"PREFECT_HOME": str(home), "XDG_CACHE_HOME": str(cache)}
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    done = subprocess.run(
        [sys.executable, "-c", MAKE],
        env=clean | settings,
        cwd=IMPORT_ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)["migrated"]


def content(path: Path) -> tuple[list[str], dict[str, int]]:
    """Everything that defines the database, and the number of rows of each table."""
    with closing(sqlite3.connect(path)) as base:
        made = [str(row) for row in base.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name")]
        tables = [name for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = {name: base.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in tables}
    return made, rows


@pytest.mark.slow
def test_a_second_store_copies_the_tables_that_migrations_made_for_the_first(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert make(tmp_path / "a", cache) == 1
    assert make(tmp_path / "b", cache) == 0
    assert content(tmp_path / "a" / "prefect.db") == content(tmp_path / "b" / "prefect.db")
    [kept] = (cache / "atelier").iterdir()
    assert kept.name == f"prefect-{prefect.__version__}.db"
    assert content(tmp_path / "b" / "prefect.db")[1]["flow_run"] == 0

    kept.write_bytes(kept.read_bytes()[:100_000])  # damaged: made anew, here and for the next
    assert make(tmp_path / "c", cache) == 1 and make(tmp_path / "d", cache) == 0
    assert content(tmp_path / "c" / "prefect.db") == content(tmp_path / "d" / "prefect.db")
    assert content(tmp_path / "a" / "prefect.db")[1] == content(tmp_path / "c" / "prefect.db")[1]

    no_folder = tmp_path / "file"  # nothing can be kept: no error
    no_folder.write_text("")
    assert make(tmp_path / "e", no_folder) == 1
    assert content(tmp_path / "a" / "prefect.db")[1] == content(tmp_path / "e" / "prefect.db")[1]


TRACK = """
import sys
from pathlib import Path
from atelier.infra.store.store import Store
from atelier.infra.tracking.own_database import own_files, settle
store = Store(sys.argv[1])
uri = settle(store)
is_copied = Path(uri.removeprefix("sqlite:///")).stat().st_size > 0
from atelier.infra.tracking.backend import Backend
Backend(uri, own_files(store)).ping()
print(is_copied)
"""


@pytest.mark.slow
def test_a_second_store_copies_mlflows_tables_and_has_an_experiment_of_its_own(tmp_path: Path) -> None:
    cache, found = tmp_path / "cache", dict[str, tuple[int, object]]()
    for name in ("a", "b"):
        done = subprocess.run(
            [sys.executable, "-c", TRACK, str(tmp_path / name)],
            env=os.environ | {"XDG_CACHE_HOME": str(cache)},
            cwd=IMPORT_ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == str(name == "b")
        [path] = (tmp_path / name).rglob("mlflow.db")
        assert path.stat().st_mode & 0o077 == 0
        with closing(sqlite3.connect(path)) as base:
            [(made,)] = base.execute("SELECT creation_time FROM experiments")
        found[name] = (made, content(path))
    assert found["a"][0] < found["b"][0]  # by which databases are told apart
    assert found["a"][1] == found["b"][1]
