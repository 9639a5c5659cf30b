"""Leases on stores that cannot create a file exclusively: a database decides."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from atelier.engine.config.error import ConfigError
from atelier.engine.io.storage import exists, join, read_bytes, remove, write_bytes
from atelier.infra.store import conditional_create
from atelier.infra.store.conditional_create import LEASES, Register, check_exclusive, create_exclusive, unlist
from atelier.infra.store.lease import Holder, LeaseLog, take
from tests.engine.checkpoint.ftp import serving

# fsspec's FTP client leaves its connections to the garbage collector
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

RACER = """
import sys
from atelier.infra.store.conditional_create import create_exclusive
for number in range(int(sys.argv[2])):
    print(int(create_exclusive(f"{sys.argv[1]}/{number}", sys.argv[3].encode())), flush=True)
"""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A store without exclusive creates, beside a database of leases."""
    monkeypatch.setenv(LEASES, f"sqlite:///{tmp_path}/leases.db")
    with serving(tmp_path / "ftp") as server:
        yield f"{server.url}/store"
    conditional_create._opened.cache_clear()


def test_of_processes_that_race_for_a_file_one_wins_and_all_see_its_content(store: str) -> None:
    rounds, racers = 5, 4
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", RACER, store, str(rounds), f"racer {number}"],
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(racers)
    ]
    won = [process.communicate(timeout=120)[0].split() for process in processes]
    assert all(len(one) == rounds for one in won)
    for number in range(rounds):
        [winner] = [racer for racer in range(racers) if won[racer][number] == "1"]
        assert read_bytes(f"{store}/{number}") == f"racer {winner}".encode()


def test_a_folder_that_others_make_meanwhile_or_a_part_of_it_is_no_error(tmp_path: Path) -> None:
    for made in ("store", "store/model/log"):
        with serving(tmp_path / "ftp") as server:
            url = f"{server.url}/store/model/log/000001.json"
            assert not exists(url)  # what the client believes from now on
            (tmp_path / "ftp" / made).mkdir(parents=True)
            write_bytes(url, b"here")
            assert read_bytes(url) == b"here"


def test_who_comes_second_completes_the_file_of_a_winner_that_died(store: str, tmp_path: Path) -> None:
    place = f"{store}/log/000001.json"
    register = Register(f"sqlite:///{tmp_path}/leases.db")
    register._act(lambda connection: register._insert(connection, place, b"first", "a dead process"))
    assert not exists(place)
    assert not create_exclusive(place, b"second") and read_bytes(place) == b"first"


def test_a_lease_is_taken_released_and_taken_again_and_a_late_list_of_entries_hides_none(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"{store}/model/abc"
    first = take(address, Holder.me("first"))
    assert first is not None and first.fence == 1 and first.is_mine()
    first.release()
    monkeypatch.setattr(
        "atelier.infra.store.lease.names", lambda folder: []
    )  # as an object store's list may be
    second = take(address, Holder.me("second"))
    assert second is not None and second.fence == 3
    assert LeaseLog(address).numbers() == [1, 2, 3] and not first.is_mine()


def test_what_was_removed_for_good_can_be_created_anew(store: str) -> None:
    place = f"{store}/model/abc/log/000001.json"
    assert create_exclusive(place, b"old") and create_exclusive(f"{store}/model/abcd", b"beside it")
    unlist(f"{store}/model/abc")
    remove(f"{store}/model/abc")
    assert create_exclusive(place, b"new") and not create_exclusive(f"{store}/model/abcd", b"again")


def test_a_store_without_either_is_refused_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(LEASES, raising=False)
    with serving(tmp_path / "ftp") as server, pytest.raises(ConfigError) as caught:
        check_exclusive(join(server.url, "store"))
    assert "no conditional put" in str(caught.value) and LEASES in caught.value.way_out


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("nonsense", "cannot be used"),
        (
            "sqlite:////nowhere/at/all.db",
            "the database of leases refuses the request (unable to open database file)",
        ),
    ],
)
def test_a_database_that_is_not_there_is_one_clear_error(
    address: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LEASES, address)
    with serving(tmp_path / "ftp") as server, pytest.raises(ConfigError, match=LEASES) as caught:
        check_exclusive(join(server.url, "store"))
    assert problem in str(caught.value)
