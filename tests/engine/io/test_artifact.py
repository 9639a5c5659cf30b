"""Files are verified once for all processes that share a scratch folder, and again when they change."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from atelier.engine.config.error import DamageError
from atelier.engine.io import artifact as artifacts
from atelier.engine.io.artifact import ArtifactInput, open_input
from tests.engine.trainings import artifact

NAME = "train.bin"


@pytest.fixture
def source(tmp_path: Path) -> ArtifactInput:
    return open_input(artifact(tmp_path / "tokens", "tokens", {NAME: b"ab" * 1000}))


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were read to verify them."""
    found: list[str] = []
    verify = artifacts.verify

    def counted(url: str, *more: object) -> None:
        found.append(url)
        verify(url, *more)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(artifacts, "verify", counted)
    return found


def test_a_file_is_read_once_for_all_that_share_a_scratch_folder(
    source: ArtifactInput, read: list[str], tmp_path: Path
) -> None:
    with ThreadPoolExecutor(8) as threads:
        places = list(threads.map(lambda _: source.file(NAME, tmp_path / "scratch"), range(32)))
    assert len(set(places)) == 1 and len(read) == 1
    source.file(NAME, tmp_path / "another node")
    assert len(read) == 2


@pytest.mark.parametrize("size", [2000, 1999])
def test_a_file_that_changed_is_read_again_and_its_damage_found(
    source: ArtifactInput, read: list[str], tmp_path: Path, size: int
) -> None:
    path = source.file(NAME, tmp_path)
    before = path.stat()
    path.write_bytes(b"x" * size)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # even if it seems to be as old as before
    for _ in range(2):
        with pytest.raises(DamageError, match=NAME):
            source.file(NAME, tmp_path)
    path.write_bytes(b"ab" * 1000)
    assert source.file(NAME, tmp_path) == path and len(read) == 4


def test_a_missing_file_is_told_each_time(source: ArtifactInput, tmp_path: Path) -> None:
    source.file(NAME, tmp_path).unlink()
    for _ in range(2):
        with pytest.raises(DamageError, match="missing"):
            source.file(NAME, tmp_path)
