"""The store's MLflow database works after the store moves, and belongs to its owner alone."""

import os
import shutil
import sqlite3
import threading
import warnings
from contextlib import closing
from pathlib import Path

import mlflow
import pytest

from atelier.engine.config.error import ConfigError
from atelier.flows.cli.main import run
from atelier.infra.stack.database_check import tighten
from atelier.infra.store.store import Store
from atelier.infra.tracking.address import tracking_address
from atelier.infra.tracking.backend import Backend
from atelier.infra.tracking.own_database import ADDRESSES, TEXTS, own_files, settle
from tests.infra.tracking.tiny_version import registered, tiny_files


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory, empty_database: Path) -> Path:
    """A store with a registered model that no longer lies where it was made."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "old").mkdir()
    shutil.copy(empty_database, folder / "old" / "mlflow.db")
    registered(folder, tiny_files(), settle(Store(str(folder / "old"))), "old")
    return Path(shutil.move(folder / "old", folder / "kept"))


@pytest.fixture
def store(moved: Path, tmp_path: Path) -> Store:
    return Store(str(shutil.copytree(moved, tmp_path / "new")))


def loads(uri: str) -> bool:
    """Whether MLflow finds the files of the registered model."""
    client = mlflow.MlflowClient(uri, uri)
    source = client.get_model_version_by_alias("tiny", "latest").source
    try:
        found = mlflow.artifacts.list_artifacts(artifact_uri=source, tracking_uri=uri)
    except mlflow.MlflowException:
        return False
    return any(file.path.endswith("MLmodel") for file in found)


def addresses(store: Store) -> set[str]:
    with closing(sqlite3.connect(f"{store.root}/mlflow.db")) as database:
        rows = [
            database.execute(f"SELECT {column} FROM {table}").fetchall()
            for table, column in ADDRESSES + TEXTS
        ]
    return {text for found in rows for (text,) in found if text and "/mlruns/" not in text}


def test_a_registered_model_is_loaded_after_the_store_has_moved_twice(
    store: Store, moved: Path, monkeypatch: pytest.MonkeyPatch
):
    former = str(moved.with_name("old"))
    assert not loads(f"sqlite:///{store.root}/mlflow.db")
    uri = tracking_address("", store)
    monkeypatch.setattr("mlflow.tracking._tracking_service.utils._tracking_uri", uri)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow's own, at loading
        mlflow.pyfunc.load_model("models:/tiny@latest")
    assert not any(former in text for text in addresses(store))
    again = Store(shutil.move(store.root, f"{store.root}er"))
    assert loads(tracking_address("", again)) and not Path(store.root).exists()
    assert not any(f"{store.root}/" in text for text in addresses(again))


def test_status_corrects_the_addresses_of_a_store_that_was_moved(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("ATELIER_ROOT", store.root)
    assert not loads(f"sqlite:///{store.root}/mlflow.db")
    run(["status"])
    assert loads(f"sqlite:///{store.root}/mlflow.db")


def test_new_runs_of_a_moved_store_write_to_where_it_lies(store: Store, moved: Path, tmp_path: Path):
    backend = Backend(tracking_address("", store), own_files(store))
    run_id = backend.new_run(backend.experiment("demo"), "new", {})
    (tmp_path / "a.txt").write_text("a")
    backend.files(run_id, [str(tmp_path / "a.txt")], "report")
    assert list(Path(store.root).rglob("a.txt")) and not moved.with_name("old").exists()


def test_a_store_that_moves_before_its_first_file_is_known_by_its_folders(
    tmp_path: Path, empty_database: Path
):
    (tmp_path / "old").mkdir()
    shutil.copy(empty_database, tmp_path / "old" / "mlflow.db")
    old = Store(str(tmp_path / "old"))
    Backend(settle(old), own_files(old)).experiment("demo")
    new = Store(str(shutil.move(old.root, tmp_path / "new")))
    settle(new)
    assert f"file://{new.root}/mlartifacts/demo" in addresses(new)
    assert not any(f"{old.root}/" in text for text in addresses(new))


def test_a_copy_uses_its_own_files_and_the_original_its_own(store: Store):
    settle(store)
    copy = Store(shutil.copytree(store.root, f"{store.root}-copy"))
    before = addresses(store)
    assert loads(settle(copy)) and loads(settle(store)) and addresses(store) == before
    shutil.rmtree(store.root)
    assert loads(settle(copy)) and any(f"{copy.root}/" in text for text in addresses(copy))


def test_plain_addresses_of_older_versions_are_corrected(store: Store, moved: Path):
    with sqlite3.connect(f"{store.root}/mlflow.db") as database:
        for table, column in ADDRESSES:
            database.execute(f"UPDATE {table} SET {column} = replace({column}, 'file://', '')")
    assert loads(settle(store)) and not any(str(moved.with_name("old")) in text for text in addresses(store))


def test_a_store_behind_another_link_keeps_its_addresses(store: Store, tmp_path: Path):
    settle(store)
    before = addresses(store)
    (tmp_path / "link").symlink_to(store.root)
    assert loads(settle(Store(str(tmp_path / "link")))) and addresses(store) == before


def test_addresses_of_another_store_and_of_servers_stay(store: Store, tmp_path: Path):
    other = tmp_path / "other" / "mlartifacts" / "else"
    other.mkdir(parents=True)
    absent = "file:///media/unplugged/mlartifacts/else"  # of a disk that comes back
    kept = {
        f"file://{other}",
        absent,
        "file:///media/mlartifacts/",
        "s3://bucket/mlartifacts/x",
        "mlflow-artifacts:/7",
        "/plain/folder",
    }
    with sqlite3.connect(f"{store.root}/mlflow.db") as database:
        for number, place in enumerate(sorted(kept), 100):
            row = (number, str(number), place, "active")
            database.execute(
                "INSERT INTO experiments (experiment_id, name, artifact_location, lifecycle_stage, workspace)"
                " VALUES (?, ?, ?, ?, 'default')",
                row,
            )
    settle(store)
    assert kept <= addresses(store)


def test_a_file_that_a_run_left_at_the_old_place_keeps_its_address(store: Store, moved: Path):
    """A version before this one made the old folder again."""
    with sqlite3.connect(f"{store.root}/mlflow.db") as database:
        (place,) = database.execute("SELECT artifact_uri FROM runs LIMIT 1").fetchone()
    left = Path(place.removeprefix("file://"))
    left.mkdir(parents=True)
    try:
        assert loads(settle(store)) and place in addresses(store)
    finally:
        shutil.rmtree(moved.with_name("old"))


def test_processes_that_open_a_moved_store_at_once_agree(store: Store):
    faults: list[Exception] = []

    def open_it() -> None:
        try:
            settle(store)
        except Exception as error:
            faults.append(error)

    threads = [threading.Thread(target=open_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults and loads(settle(store))


def test_the_database_is_its_owners_alone_when_it_is_made_and_when_it_is_old(store: Store, tmp_path: Path):
    before = os.umask(0o022)
    try:
        path = Path(store.root, "mlflow.db")
        path.chmod(0o644)
        path.with_name("mlflow.db-wal").touch(0o644)
        settle(store)
        settle(new := Store(str(tmp_path / "empty")))
    finally:
        os.umask(before)
    files = [path, path.with_name("mlflow.db-wal"), Path(new.root, "mlflow.db")]
    assert {oct(file.stat().st_mode & 0o777) for file in files} == {"0o600"}


def test_a_group_that_shares_a_store_shares_its_database(tmp_path: Path):
    """Whoever may write to the folder could replace it. Others, and groups of another kind, get nothing."""
    store, mode = Store(str(tmp_path / "shared")), {}
    Path(store.root).mkdir()
    path = Path(store.root, "mlflow.db")
    settle(store)
    for folder in (0o2770, 0o2777, 0o755, 0o2750, 0o775, 0o700):
        Path(store.root).chmod(folder)
        path.with_name("mlflow.db-shm").touch(0o644)
        settle(store)
        files = (path, path.with_name("mlflow.db-shm"))
        mode[folder] = {oct(file.stat().st_mode & 0o777) for file in files}
    alone, shared = {"0o600"}, {"0o660"}
    assert mode == {0o2770: shared, 0o2777: shared, 0o755: alone, 0o2750: alone, 0o775: shared, 0o700: alone}
    Path(store.root).chmod(0o2770)
    path.chmod(0o400)
    tighten(path)
    assert path.stat().st_mode & 0o777 == 0o440, "nobody may write what its owner may not"


@pytest.mark.root
def test_a_group_that_the_folder_is_not_of_gets_nothing(tmp_path: Path):
    tmp_path.chmod(0o770)
    (path := tmp_path / "mlflow.db").touch(0o660)
    os.chown(path, -1, 54321)
    tighten(path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_store_that_mlflow_would_read_under_another_name_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"tracker: MLflow reads .*50%25 as .*50% .*tracker=none"):
        settle(Store(str(tmp_path / "50%25")))
    assert not list(tmp_path.iterdir())


def test_a_store_that_moves_below_its_former_root_is_corrected_once(store: Store):
    tracking_address("", store)
    moved_to = Path(store.root).with_name("aside")
    shutil.move(store.root, moved_to)
    Path(store.root).mkdir()
    below = Store(str(shutil.move(moved_to, f"{store.root}/below")))
    assert loads(tracking_address("", below))
    before = addresses(below)
    assert loads(tracking_address("", below)) and addresses(below) == before
    assert not any("/below/below" in text for text in before)
