"""The audit log when a line cannot be written: it stays whole and is continued; how much of it is read."""

import errno
import io
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from atelier.infra.sites.audit import TAIL, Audit, whole_lines
from tests.checkout import TOP
from tests.infra.sites.agents import check

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def fill(path: Path) -> None:
    """Two lines are written, one for which there is place for ten bytes alone, and one more."""
    audit, unlimited = Audit(path), resource.getrlimit(resource.RLIMIT_FSIZE)
    audit.add("received", who="b", bytes=1)
    audit.add("received", who="b", bytes=2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, unlimited[1]))
    with pytest.raises(OSError, match="File too large"):
        audit.add("received", who="b", bytes=4)
    resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    audit.add("received", who="b", bytes=8)


def goes_on(path: Path, audit: Audit) -> None:
    """Further lines follow, by this process and by another one that goes on with the log."""
    audit.add("received", who="b", bytes=16)
    Audit(path).add("received", who="b", bytes=32)
    assert check(path)


def test_a_line_for_which_the_disk_has_no_place_leaves_nothing_and_the_log_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    command = [
        sys.executable,
        "-c",
        "import sys; from tests.infra.sites.test_audit import *; fill(Path(sys.argv[1]))",
    ]
    subprocess.run([*command, str(path)], cwd=TOP, check=True)
    assert check(path) and Audit(path).last_hour("b") == 1 + 2 + 8
    goes_on(path, Audit(path))


def fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files raise when they are closed, after all has been written: a network file system does."""
    opened = Path.open

    @contextmanager
    def closed(file: IO[Any]) -> Iterator[IO[Any]]:
        with file:
            yield file
        raise FULL

    monkeypatch.setattr(Path, "open", lambda path, *how, **more: closed(opened(path, *how, **more)))


def begun(folder: Path) -> tuple[Path, Audit, bytes]:
    """A log of one line, and what its file holds."""
    path = folder / "audit.jsonl"
    audit = Audit(path)
    audit.add("received", who="b", bytes=1)
    return path, audit, path.read_bytes()


def test_a_line_whose_file_cannot_be_closed_is_as_one_that_was_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, audit, before = begun(tmp_path)
    with monkeypatch.context() as patch:
        fail(patch)
        with pytest.raises(OSError, match="No space left"):
            audit.add("received", who="b", bytes=2)
    assert path.read_bytes() == before and audit.last_hour("b") == 1
    goes_on(path, audit)


def test_nothing_is_appended_to_a_line_that_cannot_be_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, audit, before = begun(tmp_path)

    def no_cut(path: Path, size: int) -> None:
        raise FULL

    with monkeypatch.context() as patch:
        patch.setattr(os, "truncate", no_cut)
        with monkeypatch.context() as closing:
            fail(closing)
            with pytest.raises(OSError, match="No space left"):
                audit.add("received", who="b", bytes=2)
        left = path.read_bytes()
        assert left.startswith(before) and len(left) > len(before)
        with pytest.raises(OSError, match="No space left"):
            audit.add("received", who="b", bytes=4)
        assert path.read_bytes() == left
    goes_on(path, audit)
    assert audit.last_hour("b") == 1 + 16


@pytest.mark.parametrize("half", [b"", b"{", b"x" * 200_000])
def test_of_an_audit_log_the_end_alone_is_looked_at_for_half_a_line(half: bytes) -> None:
    for before in (b"", b"y" * 300_000 + b"\n", b"y\n" * 3_000_000):
        file = Counted(before + half)
        assert whole_lines(file) == len(before)
        assert file.read_bytes <= len(half) + 2 * TAIL


class Counted(io.BytesIO):
    """A file that knows how much of it was read."""

    read_bytes = 0

    def read(self, size: int | None = -1) -> bytes:
        found = super().read(size)
        self.read_bytes += len(found)
        return found
