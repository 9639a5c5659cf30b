"""The folders of a site in a bucket that is a shared folder, to which others may write."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from atelier.infra.sites.bucket import IN, OUT, SHORT, Bucket, BucketError

DIGEST = "ab" * 32
DIGITS = DIGEST[:SHORT]


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def after_mkdir(monkeypatch: pytest.MonkeyPatch, name: str, act: Callable[[], None]) -> None:
    """Another user acts when the folder of this name has been made."""
    mkdir = os.mkdir

    def made(path: str | Path, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        mkdir(path, mode, dir_fd=dir_fd)
        if Path(path).name == name:
            act()

    monkeypatch.setattr(os, "mkdir", made)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket").chmod(0o1777)
    (tmp_path / "private").mkdir()
    (tmp_path / "private").chmod(0o755)
    return tmp_path / "bucket"


def test_others_may_write_to_a_sites_folders_as_to_the_buckets_whatever_the_umask(shared: Path) -> None:
    before = os.umask(0o077)
    try:
        Bucket(f"file://{shared}", DIGEST).make()
    finally:
        os.umask(before)
    folders = [shared / DIGITS, shared / DIGITS / IN, shared / DIGITS / OUT]
    assert [mode_of(folder) for folder in folders] == [0o1777] * 3


def test_a_folder_that_was_there_keeps_its_mode(shared: Path) -> None:
    (shared / DIGITS).mkdir()
    (shared / DIGITS).chmod(0o750)
    Bucket(f"file://{shared}", DIGEST).make()
    assert mode_of(shared / DIGITS) == 0o750 and mode_of(shared / DIGITS / IN) == 0o1777


@pytest.mark.parametrize("where", ["", IN, OUT])
def test_a_link_that_is_put_in_the_place_of_a_folder_that_was_made_changes_no_other_folder(
    shared: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    private, place = shared.parent / "private", shared / DIGITS / where

    def swap() -> None:
        place.rmdir()
        place.symlink_to(private)

    after_mkdir(monkeypatch, place.name, swap)
    with pytest.raises(BucketError, match="is a link"):
        Bucket(f"file://{shared}", DIGEST).make()
    assert mode_of(private) == 0o755 and not [*private.iterdir()]


def test_a_folder_that_is_put_in_the_place_of_one_that_was_made_keeps_its_mode(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = shared / DIGITS / OUT

    def swap() -> None:
        (shared.parent / "private").replace(place)

    after_mkdir(monkeypatch, OUT, swap)
    Bucket(f"file://{shared}", DIGEST).make()
    assert mode_of(place) == 0o755


def test_what_is_written_for_a_site_makes_none_of_its_folders(shared: Path) -> None:
    """They would be the writer's, where an agent has removed its own: it could not begin again there."""
    bucket = Bucket(f"file://{shared}", DIGEST)
    bucket.make()
    bucket.write(b"x", IN, "there")
    bucket.clear()
    with pytest.raises(BucketError, match=f"{DIGITS}/{IN} is gone"):
        bucket.write(b"x", IN, "there")
    assert not [*shared.iterdir()]
    bucket.make()
    bucket.write(b"x", IN, "there")
