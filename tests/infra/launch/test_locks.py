"""Locks shared by all users of a machine: a hostile user is refused, a dead process holds none."""

import os
import random
import socket
import subprocess
import sys
import tempfile
from itertools import takewhile
from pathlib import Path

import pytest

from atelier.engine.config.error import ConfigError
from atelier.infra.launch import locks
from atelier.infra.launch.locks import FOR_ALL, holder, shared_folder, try_lock
from tests.checkout import TOP

STRANGER, OTHER = 12345, 12346
AS_USER = """
import os, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from atelier.infra.launch.locks import FOR_ALL, try_lock
os.setgid(int(sys.argv[3])), os.setuid(int(sys.argv[3]))
os.umask(0o077)
print(try_lock(Path(sys.argv[2]), FOR_ALL) is not None, flush=True)
sys.stdin.read()
"""


def as_user(uid: int, place: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", AS_USER, str(TOP / "src"), str(place), str(uid)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def word_of(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def hostile(kind: str, place: Path, victim: Path) -> None:
    if kind == "link":
        place.symlink_to(victim)
    elif kind == "dangling link":
        place.symlink_to(victim.with_name("not-there"))
    elif kind == "folder":
        place.mkdir()
    elif kind == "fifo":
        os.mkfifo(place)
    else:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(place))


def test_what_is_no_plain_file_is_refused_by_name_and_nothing_behind_it_is_touched(tmp_path: Path) -> None:
    dice = random.Random(7)
    victim = tmp_path / "victim"
    victim.write_text("theirs")
    kinds = ["link", "dangling link", "folder", "fifo", "socket"]
    for number, kind in enumerate(dice.sample(kinds, len(kinds))):
        place = tmp_path / f"gpu-{number}.lock"
        hostile(kind, place, victim)
        with pytest.raises(
            ConfigError, match=f"gpu-{number}.lock.*created by .*ask root to remove it"
        ) as caught:
            try_lock(place, FOR_ALL)
        assert "\n" not in str(caught.value), kind
    assert victim.read_text() == "theirs" and not (tmp_path / "not-there").exists()


def test_a_lock_on_a_removed_file_keeps_nobody_out_and_is_not_given(tmp_path: Path) -> None:
    place = tmp_path / "slot"
    first = try_lock(place, FOR_ALL)
    assert first is not None and try_lock(place, FOR_ALL) is None
    assert holder(place) == os.getpid()
    place.unlink()
    second = try_lock(place, FOR_ALL)
    assert second is not None and os.fstat(second).st_ino == os.stat(place).st_ino
    os.close(first)
    os.close(second)
    assert holder(place) is None


def test_a_folder_that_a_stranger_could_change_is_passed_over_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(locks.FOLDER, raising=False)
    open_to_all, sticky = tmp_path / "open", tmp_path / "sticky"
    for folder, mode in ((open_to_all, 0o777), (sticky, 0o1777)):
        folder.mkdir()
        folder.chmod(mode)
    root = os.stat(sticky).st_uid
    monkeypatch.setattr(locks, "_is_safe", lambda place, owners, real=locks._is_safe: real(place, {root}))
    monkeypatch.setattr(locks, "PLACES", (str(tmp_path / "absent"), str(open_to_all), str(sticky)))
    assert shared_folder() == sticky
    monkeypatch.setattr(locks, "PLACES", (str(open_to_all),))
    with pytest.raises(ConfigError, match=r"ATELIER_LOCKS.*created by root with mode 1777"):
        shared_folder()
    monkeypatch.setenv(locks.FOLDER, str(open_to_all))
    with pytest.raises(ConfigError, match="other users"):
        shared_folder()
    monkeypatch.setenv(locks.FOLDER, str(sticky))
    assert shared_folder() == sticky


@pytest.mark.root
def test_users_lock_each_others_files_and_a_killed_one_holds_none(tmp_path: Path) -> None:
    for folder in takewhile(lambda each: each != Path(tempfile.gettempdir()), (tmp_path, *tmp_path.parents)):
        folder.chmod(0o755)
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    place = shared / "gpu.lock"
    first = as_user(STRANGER, place)
    assert word_of(first) == "True" and os.stat(place).st_uid == STRANGER
    assert try_lock(place, FOR_ALL) is None and holder(place) == first.pid
    second = as_user(OTHER, place)
    assert word_of(second) == "False"
    second.communicate()
    first.kill()
    first.communicate()
    third = as_user(OTHER, place)
    assert word_of(third) == "True"
    third.communicate()
    mine = try_lock(place, FOR_ALL)
    assert mine is not None
    os.close(mine)
