"""`atelier cancel` reaches one run, waits for its end and says how to continue; an ended run is one line."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from atelier.flows.cli.main import run
from atelier.flows.run import cancel_request
from atelier.flows.run.cancel_request import obeying
from atelier.infra.run.run_log import RunLog
from atelier.infra.store.lease import Holder
from atelier.infra.store.run_manifest import Row, RunManifest, read_manifest, write_manifest
from atelier.infra.store.store import Store

ID, OTHER = "20261201-100000-aaaaaa", "20261201-110000-bbbbbb"
FINGERPRINT, TRAINING = "1" * 64, "2" * 64
COMMAND = "atelier pretrain name=mine"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setattr(cancel_request, "LOOK_S", 0.01)
    return Store(str(tmp_path))


def begin(store: Store, run_id: str = ID, status: str = "running", **holder: object) -> None:
    row = Row(
        fingerprint=FINGERPRINT, name="train", task="train", kind="model", model="mine", keeps=(TRAINING,)
    )
    about = {"command": COMMAND, "tasks": (row,), "holder": {**vars(Holder.me()), **holder}}
    write_manifest(store, RunManifest.model_validate({"id": run_id, "status": status, **about}))


@contextmanager
def running(store: Store, status: str, run_id: str = ID) -> Iterator[threading.Event]:
    """A run that ends with `status` once it is asked to stop; the event says that it was."""
    begin(store, run_id)
    stop, is_over = threading.Event(), threading.Event()

    def work() -> None:
        with obeying(store.root, run_id, stop, lambda text: None):
            while not stop.wait(0.01):
                if is_over.is_set():
                    return
            folder = Path(store.root, "scratch", run_id)
            RunLog(folder, lambda node, message: None)("train", {"stopped": 7})
            place = Path(store.address("trajectory", TRAINING), "checkpoints", "step-00000007")
            place.mkdir(parents=True)
            manifest = read_manifest(store, run_id)
            write_manifest(store, manifest.model_copy(update={"status": status, "ended": 2.0}))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield stop
    finally:
        is_over.set()
        thread.join()


def test_a_run_is_stopped_and_one_learns_at_which_step_and_how_to_continue(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(store, "stopped") as stop, running(store, "stopped", OTHER) as other:
        assert run(["cancel", ID]) == 0
        assert stop.is_set() and not other.is_set()
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        f"run {ID} is cancelled; checkpoints: mine at step 7",
        f"continue {COMMAND}",
    ]
    assert err.splitlines() == ["  train: stopped at step 7, with a checkpoint"]
    assert not [*Path(store.root, "runs").glob("*.cancel")]


@pytest.mark.parametrize(("status", "code"), [("failed", 1), ("finished", 0)])
def test_a_run_that_ends_otherwise_meanwhile_is_told_as_it_ended(
    store: Store, status: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(store, status):
        assert run(["cancel", ID, "--json"]) == code
    found = json.loads(capsys.readouterr().out)
    command = COMMAND if code else ""
    steps = {"mine": 7}
    assert found == {"run": ID, "was": "running", "status": status, "steps": steps, "command": command}


def test_without_waiting_the_request_stands_until_the_run_reads_it(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(store, "stopped") as stop:
        assert run(["cancel", ID, "--no-wait"]) == 0
        assert stop.wait(5)
    assert "was asked to stop" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("status", "holder", "said"),
    [("finished", {}, "finished"), ("stopped", {}, "stopped"), ("running", {"started": "1"}, "crashed")],
)
def test_a_run_that_has_ended_is_one_line_and_no_request(
    store: Store, status: str, holder: dict[str, object], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(store, ID, status, **holder)
    assert run(["cancel", ID]) == 0
    assert capsys.readouterr().out == f"run {ID} has ended already ({said}); nothing to cancel\n"
    assert not [*Path(store.root, "runs").glob("*.cancel")]


def test_an_unknown_run_is_refused(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    begin(store)
    assert run(["cancel", "nothing"]) == 2
    assert capsys.readouterr().err.startswith("cancel: no run is called nothing")
