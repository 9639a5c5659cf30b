"""A database that stays broken is refused at once, with the command that helps."""

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from mlflow.store.db.utils import _get_latest_schema_revision

from atelier.engine.config.error import ConfigError
from atelier.engine.io.local_url import sqlite_url
from atelier.infra.stack import database_check
from atelier.infra.stack.database_check import MLFLOW, PREFECT, check_database, known_revisions
from atelier.infra.store.store import Store
from atelier.infra.tracking.address import tracking_address

OLDER = "0a8213491aaa"
MADE_OLD = """
import sys
from alembic import command
from mlflow.store.db import utils
engine = utils.create_sqlalchemy_engine(sys.argv[1])
utils.InitialBase.metadata.create_all(engine)
config = utils._get_alembic_config(sys.argv[1])
with engine.begin() as config.attributes["connection"]:
    command.upgrade(config, "451aebb31d03")
"""  # with the first of MLflow's migrations alone


def set_version(path: Path, version: str) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE alembic_version SET version_num = ?", (version,))


def test_the_newest_version_is_the_one_that_mlflow_wants():
    newest = [name for name, is_newest in known_revisions(MLFLOW).items() if is_newest]
    assert newest == [_get_latest_schema_revision()]


def test_prefects_versions_are_known():
    known = known_revisions(PREFECT)
    assert len(known) > 50 and sum(known.values()) == 1


def test_a_database_of_this_version_is_accepted(root: Path):
    check_database(root / "mlflow.db", MLFLOW)
    check_database(root / "none.db", MLFLOW)
    (root / "empty.db").touch()
    check_database(root / "empty.db", MLFLOW)


def test_tables_of_a_newer_mlflow_are_refused_at_once_with_both_ways_out(root: Path):
    set_version(root / "mlflow.db", "ffffffffffff")
    with pytest.raises(ConfigError) as caught:
        tracking_address("", Store(str(root)))
    assert str(caught.value).startswith(
        f"tracker: MLflow's database {root}/mlflow.db has tables of another version"
    )
    assert "(ffffffffffff); install the MLflow version that made it, or move it away (mv " in str(
        caught.value
    )
    assert caught.value.exit_code == 2


def test_older_tables_are_refused_with_a_command_that_backs_them_up_first(root: Path):
    set_version(root / "mlflow.db", OLDER)
    with pytest.raises(ConfigError) as caught:
        check_database(root / "mlflow.db", MLFLOW, still_s=0)
    command = caught.value.way_out.partition(": ")[2]
    assert command == (
        f"cp {root}/mlflow.db {root}/mlflow.db.backup && mlflow db upgrade sqlite:///{root}/mlflow.db"
    )


@pytest.mark.slow
def test_the_command_that_is_named_mends_older_tables(tmp_path: Path):
    path = tmp_path / "it's $HOME" / "mlflow.db"
    path.parent.mkdir()
    subprocess.run([sys.executable, "-c", MADE_OLD, sqlite_url(path)], check=True)
    with pytest.raises(ConfigError) as caught:
        check_database(path, MLFLOW, still_s=0)
    command = caught.value.way_out.partition(": ")[2]
    bin = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    subprocess.run(["bash", "-c", command], check=True, env=os.environ | {"PATH": bin})
    check_database(path, MLFLOW)
    assert path.with_name("mlflow.db.backup").exists()


def test_tables_that_another_process_is_making_are_waited_for(root: Path):
    path, steps = root / "mlflow.db", iter([OLDER, "0c779009ac13", _get_latest_schema_revision()])
    set_version(path, OLDER)
    check_database(path, MLFLOW, sleep=lambda seconds: set_version(path, next(steps)))
    assert next(steps, None) is None


def test_what_is_no_database_is_refused_with_the_command_that_sets_it_aside(root: Path):
    (root / "mlflow.db").write_bytes(b"no database" * 99)
    with pytest.raises(ConfigError) as caught:
        tracking_address("", Store(str(root)))
    assert "cannot be used: file is not a database; repair it, or move it away (mv " in str(caught.value)
    assert "tracker=none runs without" in caught.value.way_out


def test_a_database_that_cannot_be_written_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        "os.access", lambda path, mode: False
    )  # tests may run as root, who may write anything
    with pytest.raises(ConfigError, match="cannot be used: it cannot be written"):
        check_database(root / "mlflow.db", MLFLOW)


def test_a_database_that_another_process_holds_is_accepted(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(database_check, "WAIT_S", 0.05)
    with closing(sqlite3.connect(root / "mlflow.db", isolation_level=None)) as held:
        held.execute("BEGIN EXCLUSIVE")
        check_database(root / "mlflow.db", MLFLOW)
        held.rollback()


def test_a_database_that_the_user_names_is_checked_too(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shutil.copy(root / "mlflow.db", tmp_path / "their.db")
    set_version(tmp_path / "their.db", "ffffffffffff")
    store = Store(str(tmp_path / "store"))
    with pytest.raises(ConfigError, match=r"their\.db has tables"):
        tracking_address(f"sqlite:///{tmp_path}/their.db", store)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/their.db")
    with pytest.raises(ConfigError, match=r"their\.db has tables"):
        tracking_address("", store)


def test_prefects_older_tables_are_accepted_and_unknown_ones_refused(tmp_path: Path):
    path = tmp_path / "prefect.db"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE alembic_version (version_num TEXT)")
        database.execute("INSERT INTO alembic_version VALUES ('9725c1cbee35')")
    check_database(path, PREFECT)
    set_version(path, "ffffffffffff")
    with pytest.raises(
        ConfigError, match=r"^PREFECT_HOME: Prefect's database .*another version.*mv .*earlier runs"
    ):
        check_database(path, PREFECT)
