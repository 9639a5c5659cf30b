"""A full store: the checkpoint fails with a warning, the last good one stays, and the same command resumes
later.
"""

import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.command import EVERY, OWN_SERVER, TRAIN, Command, CommandStore, Curve


def is_told_loudly(command_store: CommandStore, code: int, text: str, reason: str, good: int) -> None:
    """Exit code 1 after one clear message and a warning for every failed save; the last good one in place."""
    assert code == 1, text
    assert "train: no checkpoint could be written" in text and reason in text
    assert "make room or another store, then run again" in text
    assert "failed:" in text and "Traceback" not in text
    command_store.wait_for_quiet()
    assert max(command_store.steps()) >= good >= 2 * EVERY
    assert not command_store.records("model")
    assert not [path for path in command_store.root.glob("trajectory/*/checkpoints/.tmp-*")]


def test_a_checkpoint_that_cannot_be_written_fails_loudly_and_the_last_good_one_stays(
    command_store: CommandStore, expected: Curve
) -> None:
    good: list[int] = []

    def limit(rank: int) -> None:  # a checkpoint has 0.4 MB, a metric segment 5 kB
        good.append(max(command_store.steps()))
        resource.prlimit(rank, resource.RLIMIT_FSIZE, (100_000, 100_000))

    with command_store.once_training(limit):
        code, out, err = command_store.finish()
    is_told_loudly(command_store, code, out + err, "File too large", good[0])
    code, out, err = command_store.finish()
    assert code == 0, out + err
    assert command_store.curve() == expected


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 16 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"cannot mount a tmpfs: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.root
@pytest.mark.slow
def test_a_full_disk_stops_training_with_one_message_and_room_lets_it_go_on(
    disk: Path, whole: CommandStore, expected: Curve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATELIER_ROOT", str(disk / "store"))
    command_store = CommandStore(disk / "store").copy_data(whole)
    ballast = disk / "ballast"
    command = Command(command_store, TRAIN, OWN_SERVER, said=disk.parent / "said.txt")
    try:
        command.until_training()
        fill(ballast)
        good = max(command_store.steps())
        is_told_loudly(command_store, command.wait(), command.text, "No space left on device", good)
    finally:
        command.end()
    ballast.unlink()
    code, out, err = command_store.finish()
    assert code == 0, out + err
    assert command_store.curve() == expected


def fill(path: Path) -> None:
    """Take every free byte."""
    block = os.urandom(1 << 16)
    with open(path, "wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(block[:size])
            except OSError:
                continue
