"""Prefect's server of a run dies or hangs: it is restarted or left; the run's own states report
how it ended.
"""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from atelier.flows.cli.main import run
from atelier.flows.run import embedded_server, execute, prefect_page
from atelier.flows.run.embedded_server import EmbeddedServer
from atelier.infra.store.run_manifest import manifests
from atelier.infra.store.store import Store

WORDS = "corpus tracker=none data.source={texts} tokenizer=bpe512 tokenizer.vocab=300"
PATIENCE_S = 100.0  # of a busy machine, its first start included; left to Prefect it was 155 s on a quiet one
NUM_NODES = 3


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("prefect")
    yield home
    embedded_server.embedded_server(home).wait()  # what tests after these start is told its address


@pytest.fixture
def command(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A small flow in a store of its own."""
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path / "store"))
    monkeypatch.setenv("PREFECT_HOME", str(home))
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(30):
        (texts / f"{number}.txt").write_text(
            f"Text {number} is about {number * 17} ships and a harbour. " * 9
        )
    return WORDS.format(texts=texts, seed=1)


def hurt(number: signal.Signals) -> None:
    """The signal to the server that this process has started, and only that."""
    os.kill(embedded_server._started[0].process.pid, number)


def at(point: int, act: Callable[[], None], patch: pytest.MonkeyPatch) -> None:
    """Have `act` happen just before node `point` of the run begins; after its last one: before its report."""
    begun: list[Any] = []
    work, show = execute.work, prefect_page.report_files

    def begin(*given: Any) -> Any:
        begun.append(given)
        if len(begun) == point + 1:
            act()
        return work(*given)

    def end(*given: Any) -> Any:
        if point >= NUM_NODES:
            act()
        return show(*given)

    patch.setattr(execute, "work", begin)
    patch.setattr(prefect_page, "report_files", end)


def runs_to_its_end(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What the run says on stderr; it has ended well, in time, and its manifest says so."""
    began = time.monotonic()
    code = run(command.split())
    took = time.monotonic() - began
    err = capsys.readouterr().err
    assert code == 0, err
    assert took < PATIENCE_S and "fault" not in err and "Traceback" not in err
    [manifest] = manifests(Store(os.environ["ATELIER_ROOT"]))
    assert manifest.status == "finished" and set(manifest.states.values()) == {"done"}
    return err


def prefect_state() -> str:
    """How the server says that its newest run ended."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.sorting import FlowRunSort

    with get_client(sync_client=True) as client:
        assert str(client.api_url).rstrip("/") == embedded_server._started[0].url, "not the one that was hurt"
        [newest] = client.read_flow_runs(sort=FlowRunSort.START_TIME_DESC, limit=1)
    return newest.state_name or ""


def test_a_server_that_is_killed_is_started_again_and_knows_how_the_run_ended(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    at(1, lambda: hurt(signal.SIGKILL), monkeypatch)
    err = runs_to_its_end(command, capsys)
    assert err == "Prefect's server was ended by SIGKILL: started again\n"
    assert prefect_state() == "Completed"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_however_often_and_whenever_the_server_dies_or_hangs_the_run_ends_well(
    seed: int, command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    how = draw.choice([signal.SIGKILL, signal.SIGSTOP])
    at(draw.randint(0, NUM_NODES), lambda: hurt(how), monkeypatch)
    err = runs_to_its_end(command, capsys)
    assert err.count("started again") == 1 and len(err.splitlines()) == 1, err
    assert prefect_state() == "Completed"


@pytest.mark.slow
def test_a_server_that_dies_too_often_is_left_and_the_run_ends_well_without_it(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_server, "RESTARTS", 0)
    at(1, lambda: hurt(signal.SIGKILL), monkeypatch)
    err = runs_to_its_end(command, capsys)
    assert "was ended by SIGKILL" in err and "continues without its page" in err
    assert "the run itself is finished" in err


@pytest.mark.slow
@pytest.mark.parametrize("has_answered", [False, True])
def test_a_server_that_is_left_before_the_flow_begins_is_not_missed(
    has_answered: bool, command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_server, "RESTARTS", 0)
    wait = EmbeddedServer.wait

    def leave(server: EmbeddedServer) -> None:
        if has_answered:
            wait(server)
        hurt(signal.SIGKILL)
        while not server.is_left:
            time.sleep(0.02)
        if not has_answered:
            wait(server)

    monkeypatch.setattr(EmbeddedServer, "wait", leave)
    err = runs_to_its_end(command, capsys)
    assert "was ended by SIGKILL" in err and "the run itself is finished" in err
