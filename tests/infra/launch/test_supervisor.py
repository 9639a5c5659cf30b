"""A supervisor outlives its ranks; after its own death no process writes beside the next one."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from atelier.engine.config.error import AtelierError, DivergedError, StoppedError
from atelier.engine.config.record import Record, identify
from atelier.engine.config.run_file import RunFile
from atelier.engine.io.artifact import ArtifactOutput
from atelier.engine.io.fork_server import ForkServer
from atelier.infra.launch.gang import start_gang
from atelier.infra.launch.orders import GangOutput, Guard, Orders
from atelier.infra.launch.supervisor import RESTARTS, Supervisor, passed, rank_env
from atelier.infra.store.lease import Holder, LeaseLost, take
from atelier.infra.store.store import Store
from tests.checkout import TOP


@dataclass
class Gang:
    """One gang over the store in `root`; `messages` is what it said."""

    root: Path
    forkserver: ForkServer | None = None

    def __post_init__(self) -> None:
        self.store = Store(str(self.root))
        self.messages: list[dict[str, Any]] = []
        self.fingerprint = identify("model", 1, {"x": 1}, {})
        self.trajectory = self.store.address("trajectory", "a" * 64)

    def run(
        self,
        *,
        deaths: int,
        gains: bool = True,
        code: int = 0,
        hangs: bool = False,
        ranks: int = 1,
        stop_at: str = "",
        ends_with: int = 0,
    ) -> None:
        """The last rank ends `deaths` times with `code` (0: SIGKILL) or hangs, after a checkpoint if it
        `gains`; then it writes its output and `ends_with`. With a code there is an output that it leaves out.
        """
        draft = Record(
            kind="model", name="m", fingerprint=self.fingerprint, version=1, identity={"x": 1}, parents={}
        )
        payload = self.store.new_payload("model", self.fingerprint)
        held = take(self.trajectory, Holder.me())
        assert held is not None
        scratch = self.root / "scratch"
        (scratch / "work").mkdir(parents=True)
        config = {
            "who": ranks - 1,
            "deaths": deaths,
            "gains": gains,
            "code": code,
            "hangs": hangs,
            "trajectory": self.trajectory,
            "ends_with": ends_with,
        }
        run = RunFile(
            task="train", version=1, config=config, scratch=str(scratch / "work"), outputs={"m": payload}
        )
        outputs = {"m": GangOutput(payload=payload, draft=draft)}
        if ends_with:
            lost = self.store.new_payload("model", "b" * 64)
            outputs["lost"] = GangOutput(payload=lost, draft=draft.model_copy(update={"name": "lost"}))
        stop = threading.Event()

        def hear(message: dict[str, Any]) -> None:
            self.messages.append(message)
            if stop_at in message:
                stop.set()

        start_gang(
            Orders(
                name="gang",
                module="tests.infra.launch.rank",
                run=run,
                root=self.store.root,
                scratch=scratch,
                ranks=ranks,
                leases={self.trajectory: held.fence},
                outputs=outputs,
            ),
            hear,
            stop,
            self.forkserver,
        )

    @property
    def warnings(self) -> list[str]:
        return [message["warning"] for message in self.messages if "warning" in message]

    def pids(self) -> list[int]:
        return [pid for message in self.messages for pid in message.get("pids", [])]

    def is_over(self) -> bool:
        return not any(Path(f"/proc/{pid}").exists() for pid in self.pids())


@pytest.fixture(scope="module")
def forkserver() -> Iterator[ForkServer]:
    server = ForkServer(["tests.infra.launch.rank"], rank_env("", 1), str(TOP))
    yield server
    server.close()
    # one that was never asked for anything may still import: it is not waited for
    assert server.process.poll() == (0 if server._is_used else -signal.SIGTERM)


@pytest.fixture(params=["executed", "forked"])
def gang(tmp_path: Path, request: pytest.FixtureRequest) -> Gang:
    forked = request.param == "forked"
    return Gang(tmp_path, request.getfixturevalue("forkserver") if forked else None)


def test_ranks_get_variables_that_tune_them_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {"NCCL_IB_HCA": "mlx5", "PYTORCH_ALLOC_CONF": "x", "TRITON_CACHE_DIR": "/x"}
    left = {"NCCL_NET_PLUGIN": "x.so", "AWS_SECRET_ACCESS_KEY": "x", "OMP_PLACESX": "x", "LD_PRELOAD": ""}
    for name, value in (kept | left).items():
        monkeypatch.setenv(name, value)
    assert kept.items() <= passed("/store").items()
    assert not left.keys() & passed("/store").keys()


def test_a_gang_that_lost_a_rank_starts_again_from_its_newest_checkpoint_and_says_so(gang: Gang) -> None:
    gang.run(deaths=2)
    assert gang.warnings == [
        f"rank 0 was ended by SIGKILL; the gang starts again from step {n} (restart {n} of {RESTARTS})"
        for n in (1, 2)
    ]
    record = gang.store.find("model", gang.fingerprint)
    assert record is not None and record.summary == {"lives": 3}
    assert len(gang.pids()) == 3 and gang.is_over()


def test_all_ranks_start_again_when_one_was_killed(gang: Gang) -> None:
    with pytest.raises(StoppedError):
        gang.run(deaths=1, ranks=2, stop_at="restart")
    assert gang.warnings[0].startswith("rank 1 was ended by SIGKILL")
    assert gang.is_over()


def test_a_gang_that_made_no_checkpoint_is_not_started_again(gang: Gang) -> None:
    with pytest.raises(AtelierError, match="ended by SIGKILL"):
        gang.run(deaths=1, gains=False)
    assert not gang.warnings and gang.store.find("model", gang.fingerprint) is None


def test_restarts_are_bounded(gang: Gang) -> None:
    with pytest.raises(AtelierError, match="ended by SIGKILL"):
        gang.run(deaths=99)
    assert len(gang.warnings) == RESTARTS and len(gang.pids()) == RESTARTS + 1


def test_an_error_of_its_own_is_not_repeated(gang: Gang) -> None:
    with pytest.raises(AtelierError, match="exit code 3"):
        gang.run(deaths=1, code=3)
    assert not gang.warnings


def test_of_a_gang_with_roles_that_diverged_the_outputs_that_it_wrote_are_published(gang: Gang) -> None:
    with pytest.raises(AtelierError):
        gang.run(deaths=0, ends_with=DivergedError.exit_code)
    assert gang.store.find("model", gang.fingerprint) is not None
    assert [record.name for record in gang.store.records("model")] == ["m"]


def test_of_a_gang_that_failed_otherwise_nothing_is_published(gang: Gang) -> None:
    with pytest.raises(AtelierError):
        gang.run(deaths=0, ends_with=1)
    assert gang.store.find("model", gang.fingerprint) is None


def test_a_gang_that_hangs_is_ended_named_and_started_again(gang: Gang) -> None:
    gang.run(deaths=1, hangs=True)
    assert gang.warnings == [
        "rank 0 is at step 3 (forward, stopped); no progress for 1 s; "
        f"the gang starts again from step 1 (restart 1 of {RESTARTS})"
    ]
    record = gang.store.find("model", gang.fingerprint)
    assert record is not None and record.summary == {"lives": 2}
    assert len(gang.pids()) == 2 and gang.is_over()


def test_a_gang_that_hangs_before_its_first_checkpoint_ends_with_the_name_of_the_rank(gang: Gang) -> None:
    with pytest.raises(AtelierError, match=r"gang: rank 0 is at step 3 \(forward, stopped\)"):
        gang.run(deaths=1, gains=False, hangs=True)
    assert not gang.warnings and gang.is_over()


def test_the_lease_is_free_when_the_gang_has_ended(gang: Gang) -> None:
    with pytest.raises(AtelierError):
        gang.run(deaths=99)
    since = time.monotonic()
    assert take(gang.trajectory, Holder.me()) is not None
    assert time.monotonic() - since < 5.0


def test_who_was_taken_over_publishes_nothing_of_the_gang(gang: Gang) -> None:
    mine = take(gang.trajectory, Holder.me("guard"))
    assert mine is not None
    fingerprint = identify("model", 1, {"x": 1}, {})
    payload = gang.store.new_payload("model", fingerprint)
    output = ArtifactOutput(payload)
    output.close({})
    draft = Record(kind="model", name="m", fingerprint=fingerprint, version=1, identity={"x": 1}, parents={})
    outputs = {"m": GangOutput(payload=payload, draft=draft)}
    guard = Supervisor(
        Guard(name="gang", module="", root=gang.store.root, scratch=gang.root, outputs=outputs)
    )
    guard.leases = [mine]
    assert take(gang.trajectory, Holder.me("another"), handover=mine.fence) is not None
    with pytest.raises(LeaseLost, match="nothing was published"):
        guard._publish()
    assert gang.store.find("model", fingerprint) is None


def hold_and_die(address: str, writer: int, told: Connection) -> None:
    lease = take(address, Holder.me("guard"))
    if lease is not None:
        lease.name_writers([writer])
    told.send(True)
    os.kill(os.getpid(), signal.SIGKILL)


def test_nobody_takes_over_from_a_dead_holder_while_its_ranks_still_write(tmp_path: Path) -> None:
    address = str(tmp_path / "trajectory")
    writer = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    here, there = multiprocessing.Pipe()
    holder = multiprocessing.get_context("fork").Process(
        target=hold_and_die, args=(address, writer.pid, there)
    )
    holder.start()
    assert here.recv()
    holder.join()
    waits, stop = [], threading.Event()
    taken: list[object] = []

    def wait() -> None:
        taken.append(take(address, Holder.me(), on_wait=waits.append, stopped=stop))

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        while not waits and thread.is_alive():
            time.sleep(0.01)
        assert thread.is_alive() and "is being written by" in waits[0]
    finally:
        writer.kill()
        writer.wait()
        thread.join(30.0)
        stop.set()
    assert taken and taken[0] is not None
