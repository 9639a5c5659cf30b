"""Leases in a real PostgreSQL: one winner of each race, also while the server is killed and restarted."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from atelier.engine.config.error import ConfigError
from atelier.engine.io.storage import join, read_bytes
from atelier.infra.store import conditional_create
from atelier.infra.store.conditional_create import LEASES, check_exclusive
from atelier.infra.store.lease import Holder, take
from tests.checkout import TOP
from tests.engine.checkpoint.ftp import serving
from tests.flow.served import wait_for
from tests.infra.store.test_conditional_create import RACER
from tests.service.postgres import PASSWORD, Postgres, missing, postgres

pytestmark = [
    pytest.mark.root,
    pytest.mark.service,
    pytest.mark.skipif(bool(missing()), reason=missing() or "all is there"),
    # fsspec's FTP client leaves its connections to the garbage collector
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    with postgres(tmp_path_factory.mktemp("postgres") / "data") as running:
        yield running


@pytest.fixture
def store(server: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A store without exclusive creates, beside the server."""
    monkeypatch.setenv(LEASES, server.url)
    with serving(tmp_path / "ftp") as there:
        yield f"{there.url}/{tmp_path.name}"
    conditional_create._opened.cache_clear()


def test_of_processes_that_race_one_wins_while_the_server_is_killed_and_started_again(
    server: Postgres, store: str, tmp_path: Path
) -> None:
    rounds, racers = 40, 4
    said = [tmp_path / f"racer-{number}" for number in range(racers)]
    processes = []
    for number, place in enumerate(said):
        words = [sys.executable, "-W", "ignore", "-c", RACER, store, str(rounds), f"racer {number}"]
        with open(place, "w") as out:
            processes.append(subprocess.Popen(words, cwd=TOP, stdout=out))

    def rounds_done() -> int:
        return min(len(place.read_text().split()) for place in said)

    wait_for(lambda: rounds_done() >= 3, 60, "three rounds")
    server.kill()
    stood = rounds_done()
    server.start()
    assert stood < rounds, "the kill came in the middle"
    assert [process.wait(120) for process in processes] == [0] * racers
    won = [place.read_text().split() for place in said]
    for number in range(rounds):
        [winner] = [racer for racer in range(racers) if won[racer][number] == "1"]
        assert read_bytes(f"{store}/{number}") == f"racer {winner}".encode()


def test_a_lease_is_taken_while_the_server_starts_again(server: Postgres, store: str) -> None:
    address = join(store, "model/abc")
    first = take(address, Holder.me("first"))
    assert first is not None and first.is_mine()
    server.kill()
    server.start()
    first.release()
    second = take(address, Holder.me("second"))
    assert second is not None and second.fence > first.fence and not first.is_mine()


def test_a_wrong_password_is_one_clear_error_without_the_password(
    server: Postgres, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = "not it at all"
    address = server.url.replace(PASSWORD.replace(" ", "%20"), wrong.replace(" ", "%20"))
    monkeypatch.setenv(LEASES, address)
    with pytest.raises(ConfigError, match="password authentication failed") as caught:
        check_exclusive(store)
    assert wrong not in str(caught.value) and LEASES in str(caught.value)
