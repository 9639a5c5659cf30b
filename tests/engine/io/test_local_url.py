"""A local path is read as it is written, and its URLs map back to it."""

import sqlite3
import zipfile
from pathlib import Path

import pytest
import sqlalchemy
from hypothesis import given
from hypothesis import strategies as st
from mlflow.store.db.utils import create_sqlalchemy_engine_with_retry

from atelier.engine.config.error import ConfigError
from atelier.engine.io import storage
from atelier.engine.io.local_url import absolute, file_url, path_of, sqlite_file, sqlite_url

STRANGE = (
    "c::d",
    "a?b",
    "50%25",
    "x${HOME}y",
    "ü",
    "a b",
    "#",
    ";",
    "'",
    '"',
    "a\nb",
    "-m",
    "file:x",
    "[a]*",
    "a:",
)


@pytest.mark.parametrize("name", STRANGE)
def test_a_folder_of_any_name_is_written_to_and_read_from(name: str, tmp_path: Path):
    url = storage.join(str(tmp_path), name, "kind", "file")
    storage.write_bytes(url, b"text")
    assert (tmp_path / name / "kind" / "file").read_bytes() == b"text" == storage.read_bytes(url)
    assert storage.create_exclusive(f"{url}.new", b"") and storage.names(str(tmp_path)) == [name]
    assert storage.is_local(url) and storage.local_path(url) == tmp_path / name / "kind" / "file"


@pytest.mark.parametrize("name", STRANGE)
def test_a_relative_path_of_any_name_begins_at_the_working_directory(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    storage.write_bytes(f"{name}/file", b"")
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", STRANGE)
def test_sqlalchemy_and_mlflow_open_the_database_of_a_path_and_make_no_folder(name: str, tmp_path: Path):
    file = tmp_path / name / "mlflow.db"
    file.parent.mkdir()
    engine = create_sqlalchemy_engine_with_retry(sqlite_url(file))
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE t (n INTEGER)"))
    engine.dispose()
    assert sqlite3.connect(file).execute("SELECT name FROM sqlite_master").fetchall() == [("t",)]
    assert [path.name for path in tmp_path.iterdir()] == [name]


@given(st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), min_size=1))
def test_urls_of_a_path_lead_back_to_it(name: str):
    path = f"/x/{name}".rstrip("/.").replace("//", "/").replace("/./", "/").replace("/../", "/")
    assert path_of(file_url(path)) == path and file_url(path).isascii()
    if str(Path(path)) == path and ".." not in path:
        assert sqlite_file(sqlite_url(path)) == Path(path)
        assert sqlalchemy.engine.make_url(sqlite_url(path)).database == path


def test_a_home_folder_is_a_leading_tilde_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert absolute("~/store") == f"{tmp_path}/store" and absolute("/a/~/b/") == "/a/~/b"


def test_chained_urls_are_no_paths(tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        packed.writestr("a.txt", "text")
    url = f"zip://a.txt::{tmp_path}/a.zip"
    assert storage.read_text(url) == "text"
    assert not storage.is_local(url) and path_of("s3://bucket/x") is None


@pytest.mark.parametrize("chain", ["/x::memory://y", "file:///x::memory://y"])
def test_a_chain_that_begins_with_a_path_is_refused(chain: str):
    with pytest.raises(ConfigError, match="a chain must begin with a kind of storage, not with the path"):
        storage.exists(chain)
