"""A gang on machines started by another system: here a batch system of plain processes."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from atelier.engine.config.error import AtelierError, ConfigError, StoppedError
from atelier.engine.config.record import Record, identify
from atelier.engine.config.run_file import RunFile
from atelier.infra.launch import batch_job
from atelier.infra.launch.batch_job import BatchJob, JobStatus
from atelier.infra.launch.channel import Channel
from atelier.infra.launch.orders import GangOutput, Orders
from atelier.infra.store.lease import Holder, take
from atelier.infra.store.store import Store

FINGERPRINT = identify("model", 1, {"x": 1}, {})


class Processes:
    """A batch system whose machines are processes; `lives` is how often a job is started when it is ended by
    `preempt`.
    """

    def __init__(self) -> None:
        self.jobs: list[list[subprocess.Popen[bytes]]] = []
        self.gang: BatchJob | None = None
        self.waits = False

    def check(self, root: str) -> None: ...

    def show(self, gang: BatchJob) -> str:
        return ""

    def submit(self, gang: BatchJob) -> str:
        self.gang = gang
        self.jobs.append([] if self.waits else self.start(0))
        return str(len(self.jobs) - 1)

    def start(self, life: int) -> list[subprocess.Popen[bytes]]:
        gang = self.gang
        assert gang is not None
        return [
            subprocess.Popen(
                [sys.executable, "-m", "atelier.infra.launch.node_agent", gang.root, gang.id],
                env=os.environ | {"SLURM_NODEID": str(index), "SLURM_RESTART_COUNT": str(life)},
            )
            for index in range(gang.nodes)
        ]

    def status(self, job: str) -> JobStatus:
        nodes = self.jobs[int(job)]
        if self.waits:
            return JobStatus("waiting", "the job waits")
        is_over = all(node.poll() is not None for node in nodes)
        return JobStatus("over" if is_over else "running", "the job is over" if is_over else "the job runs")

    def end(self, job: str) -> None:
        for node in self.jobs[int(job)]:
            node.terminate()

    def last_words(self, job: str) -> str:
        return "its last words"


@pytest.fixture
def batch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    monkeypatch.setattr(batch_job, "LOOK_S", 0.2)
    monkeypatch.setattr(batch_job, "POLL_S", 0.05)
    made = Processes()
    yield made
    for node in [node for job in made.jobs for node in job]:
        if node.poll() is None:
            node.kill()
        node.wait()


def orders(root: Path, *, ranks: int = 1, **config: Any) -> Orders:
    store = Store(str(root))
    draft = Record(kind="model", name="m", fingerprint=FINGERPRINT, version=1, identity={"x": 1}, parents={})
    payload = store.new_payload("model", FINGERPRINT)
    trajectory = store.address("trajectory", "a" * 64)
    held = take(trajectory, Holder.me())
    assert held is not None
    how = {"who": 0, "gains": False, "deaths": 0, "hangs": False, "code": 0, "trajectory": trajectory}
    return Orders(
        name="train", module="tests.infra.launch.rank",
        run=RunFile(task="train", version=1, config=how | config, scratch="", outputs={"m": payload}),
        root=str(root), scratch=root / "unused", ranks=ranks, leases={trajectory: held.fence},
        outputs={"m": GangOutput(payload=payload, draft=draft)}, grace_s=2.0,
    )  # fmt: skip


def run(given: Orders, batch: Processes, stop: threading.Event | None = None) -> list[dict[str, Any]]:
    heard: list[dict[str, Any]] = []
    batch_job.start_gang(given, heard.append, stop or threading.Event(), batch=batch, per_node=1)
    return heard


def test_its_record_is_published_and_its_messages_are_heard(tmp_path: Path, batch: Processes) -> None:
    heard = run(orders(tmp_path), batch)
    assert Store(str(tmp_path)).find("model", FINGERPRINT) is not None
    assert any("published" in message for message in heard) and {"state": "running"} in heard
    assert not list((tmp_path / "gangs").glob("away-*/said*"))


def test_a_failure_is_told_in_its_own_words(tmp_path: Path, batch: Processes) -> None:
    with pytest.raises(AtelierError, match="exit code 3"):
        run(orders(tmp_path, deaths=1, code=3), batch)


def test_a_stop_ends_the_gang_and_a_job_that_waits(tmp_path: Path, batch: Processes) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(StoppedError):
        run(orders(tmp_path, who=1), batch, stop)  # its rank would sleep for minutes
    for node in batch.jobs[0]:
        node.wait(30)
    batch.waits = True
    with pytest.raises(StoppedError):
        run(orders(tmp_path, who=1), batch, stop)


def test_nodes_that_never_read_their_orders_are_told_with_the_jobs_last_words(
    tmp_path: Path, batch: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "start", lambda life: [subprocess.Popen(["false"])])
    with pytest.raises(AtelierError, match="the job is over\nits last words"):
        run(orders(tmp_path), batch)


def test_a_batch_system_that_refuses_is_quoted(
    tmp_path: Path, batch: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(gang: BatchJob) -> str:
        raise ConfigError("site.slurm", "no such partition")

    monkeypatch.setattr(batch, "submit", refuse)
    with pytest.raises(ConfigError, match="no such partition"):
        run(orders(tmp_path), batch)


def test_messages_of_a_later_life_follow_those_of_the_one_before(tmp_path: Path) -> None:
    nodes, caller = Channel(str(tmp_path), "g"), Channel(str(tmp_path), "g")
    nodes.say(0, 1, [{"n": 1}])
    assert caller.receive() == [{"n": 1}] and caller.receive() == [] and caller.end() is None
    nodes.say(0, 2, [{"n": 2}])
    nodes.tell_end(0, {"code": 75})
    nodes.say(1, 1, [{"n": 3}])
    assert caller.receive() == [{"n": 2}, {"n": 3}] and caller.end() is None
    nodes.tell_end(1, {"code": 0})
    assert caller.end() == {"code": 0}


def test_a_job_that_is_ended_at_a_checkpoint_goes_on_in_another(tmp_path: Path, batch: Processes) -> None:
    """As by a time limit: the first job is ended after it has got further."""
    given = orders(tmp_path, who=1)  # sleeps until it is ended
    heard: list[dict[str, Any]] = []

    def hear(message: dict[str, Any]) -> None:
        heard.append(message)
        if "pids" in message and len(batch.jobs) == 1:
            # what a training says of its own accord
            channel = Channel(str(tmp_path), batch.gang.id if batch.gang else "")
            channel.say(0, 2, [{"progress": 1}])
            cast(dict[str, Any], given.run.config)["who"] = 0  # the next one ends well
            for node in batch.jobs[0]:
                node.send_signal(signal.SIGTERM)

    batch_job.start_gang(given, hear, threading.Event(), batch=batch, per_node=1)
    assert len(batch.jobs) == 2 and Store(str(tmp_path)).find("model", FINGERPRINT) is not None
    assert any("another job continues" in str(message.get("warning")) for message in heard)
