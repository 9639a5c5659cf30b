"""`atelier logs`: the lines of a run, of one task, of a rank; what it follows, and what it refuses."""

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from atelier.engine.config.message import Message
from atelier.flows.cli.commands import logs
from atelier.flows.cli.main import run
from atelier.infra.run.run_log import LogLine, RunLog
from atelier.infra.store.lease import Holder
from atelier.infra.store.run_manifest import Row, RunManifest, read_manifest, write_manifest
from atelier.infra.store.store import Store

ID = "20261201-100000-aaaaaa"
ROWS = tuple(Row(fingerprint=name, name=name, task=name, kind="model") for name in ("train", "score"))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setattr(logs, "LOOK_S", 0.01)
    return Store(str(tmp_path))


def begin(store: Store, status: str = "running", **more: object) -> RunManifest:
    document = {"id": ID, "status": status, "started": 1.0, "tasks": ROWS, "holder": vars(Holder.me())} | more
    manifest = RunManifest.model_validate(document)
    write_manifest(store, manifest)
    return manifest


def end(store: Store) -> None:
    write_manifest(store, read_manifest(store, ID).model_copy(update={"status": "finished", "ended": 2.0}))


def log_of(store: Store, part: str = "") -> RunLog:
    """A process's log of the run, at one second after another; of a task on a pool, in its own folder."""
    seconds: Iterator[int] = iter(range(1000 if part else 0, 9999))
    folder = Path(store.root, "scratch", ID, part)
    return RunLog(folder, lambda node, message: None, clock=lambda: float(next(seconds)))


def texts(out: str) -> list[str]:
    """The lines without their times."""
    return [line.partition(" ")[2] for line in out.splitlines()]


def test_the_lines_of_all_processes_come_in_order_and_a_state_is_told_once(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(store, "failed")
    parent, child = log_of(store), log_of(store, "1234abcd-part")
    parent("train", {"waiting": "waits for a worker"})
    for log in (child, parent):
        log("train", {"state": "failed"})
        log("train", {"error": "no room"})
    parent("score", {"state": "skipped"})
    assert run(["logs", ID]) == 0
    assert sorted(texts(capsys.readouterr().out)) == [
        "score: skipped",
        "train: error: no room",
        "train: failed",
        "train: waits for a worker",
    ]
    assert run(["logs", f"{ID}/score"]) == 0 and texts(capsys.readouterr().out) == ["score: skipped"]
    assert run(["logs", "score", "--json"]) == 0
    (line,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert line == {"time": 3.0, "task": "score", "level": "info", "text": "skipped", "state": "skipped"}


def test_following_prints_each_line_once_and_ends_with_the_run(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(store)
    log, seen = log_of(store), threading.Event()

    def go_on() -> None:
        assert seen.wait(10)
        messages: list[Message] = [{"log": "two"}, {"log": "three"}]
        for message in messages:
            log("train", message)
        end(store)

    def show(line: LogLine) -> None:
        seen.set()
        shown(line)

    log("train", {"log": "one"})
    shown, writer = logs._as_text, threading.Thread(target=go_on)
    writer.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "_as_text", show)
        assert run(["logs", ID, "-f"]) == 0
    writer.join()
    out, err = capsys.readouterr()
    assert texts(out) == ["train: one", "train: two", "train: three"]
    assert err.splitlines()[-1] == f"run {ID} finished"


def test_ctrl_c_ends_following_without_a_word(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(store)
    log_of(store)("train", {"log": "one"})

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(logs.time, "sleep", interrupt)
    assert run(["logs", ID, "--follow"]) == 0
    out, err = capsys.readouterr()
    assert texts(out) == ["train: one"] and err == ""


def test_a_rank_is_shown_as_it_printed(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    begin(store, "finished")
    gang = Path(store.root, "scratch", ID, "000-train")
    gang.mkdir(parents=True)
    (gang / "run.json").write_text(json.dumps({"ids": {"task": "train"}}))
    (gang / "rank0.out").write_text('{"resumed": 0}\n')
    (gang / "rank1.out").write_text("printed by hand\nhalf a li")
    (gang / "rank1.err").write_text("a warning of torch\n")
    assert run(["logs", ID, "--rank", "1"]) == 0
    assert texts(capsys.readouterr().out) == [
        "train rank 1: printed by hand",
        "train rank 1: error: a warning of torch",
    ]
    for word in ("2", "x", "-1"):
        assert run(["logs", ID, f"--rank={word}"]) == 2
        assert "is no rank of this run; give 0 to 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("status", "more", "said"),
    [
        ("finished", {"states": {"train": "reused"}}, "all its tasks were reused, so that none ran"),
        ("finished", {"states": {"train": "done"}}, "its files are gone; it ran on "),
        ("running", {}, "has written no line yet; -f waits for the first one"),
        (
            "running",
            {"holder": {**vars(Holder.me()), "host": "far"}},
            "runs on far; a log is in that machine's",
        ),
    ],
)
def test_a_run_without_a_log_here_is_refused_with_the_reason(
    store: Store, status: str, more: dict[str, object], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(store, status, **more)
    assert run(["logs", ID]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line and line.startswith("logs: run ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["20261201-10000"], "run 20261201-100000-aaaaaa has no log here"),
        (["trian"], "no run is called trian"),
        ([ID, "scroe"], "has no task 'scroe'; did you mean score? its tasks: train, score"),
        ([f"{ID}/scroe"], "has no task 'scroe'; did you mean score?"),
    ],
)
def test_a_word_for_no_run_or_no_task_is_refused(
    store: Store, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(store)
    assert run(["logs", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_run_that_died_ends_what_follows_it(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    gone = {**vars(Holder.me()), "pid": os.getpid(), "started": "1"}  # another process had this pid
    begin(store, holder=gone)
    log_of(store)("train", {"log": "one"})
    assert run(["logs", ID, "-f"]) == 0
    assert capsys.readouterr().err.splitlines()[-1] == f"run {ID} crashed"
