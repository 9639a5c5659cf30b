"""Files from outside are identified by their content, which is read again whenever it may have changed."""

import os
from pathlib import Path

import pytest

from atelier.infra.store import source_contents
from atelier.infra.store.source_contents import contents_of


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(source_contents, "YOUNG_S", -1e9)  # even what has just changed is cached
    path = tmp_path / "text.txt"
    path.write_bytes(b"before")
    return path


def test_other_bytes_of_the_same_length_in_the_same_file_are_another_content(file: Path) -> None:
    [(_, before)] = contents_of([str(file)])
    stat = file.stat()
    with open(file, "r+b") as written:
        written.write(b"behind")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1_000_000))
    [(_, after)] = contents_of([str(file)])
    assert file.stat().st_ino == stat.st_ino and after != before


def test_what_did_not_change_is_not_read_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents_of([str(file)])
    monkeypatch.setattr(source_contents.hashlib, "file_digest", None)
    assert contents_of([str(file)]) == before


def test_what_has_just_changed_is_not_believed_to_stay(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_contents, "YOUNG_S", 1e9)
    [(_, before)] = contents_of([str(file)])
    stat = file.stat()
    file.write_bytes(b"behind")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    [(_, after)] = contents_of([str(file)])
    assert after != before
