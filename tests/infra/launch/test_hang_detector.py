"""The hang detector names the rank that delays the others, once it is a hang."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from atelier.engine.io.heartbeat import RankProgress, heartbeat_file
from atelier.infra.launch.hang_detector import HangDetector, last_error


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Ranks:
    """Pulses of ranks that a test moves; `pass_` lets seconds pass, with a look each half second."""

    def __init__(self, folder: Path, pids: dict[int, int]) -> None:
        self.folder, self.clock = folder, Clock()
        self.watch = HangDetector(folder, pids, self.clock)

    def stand(self, rank: int, step: int, beat: int, phase: str, limit_s: float = 30.0) -> None:
        heartbeat_file(self.folder, rank).write_bytes(RankProgress(step, beat, limit_s, phase).pack())

    def pass_(self, seconds: float) -> str:
        for _ in range(round(seconds * 2)):
            self.clock.now += 0.5
            if found := self.watch.hang():
                return found
        return ""


@pytest.fixture
def sleepers() -> Iterator[dict[int, int]]:
    started = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) for _ in range(3)]
    yield {rank: process.pid for rank, process in enumerate(started)}
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def ranks(tmp_path: Path, sleepers: dict[int, int]) -> Ranks:
    for pid in sleepers.values():
        wait_for_state(pid, "S")
    return Ranks(tmp_path, sleepers)


def wait_for_state(pid: int, state: str) -> None:
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != state:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_rank_that_is_behind_is_named_with_step_and_phase(ranks: Ranks) -> None:
    ranks.stand(0, 7, 9, "collective")
    ranks.stand(1, 7, 4, "forward")
    ranks.stand(2, 7, 9, "collective")
    assert ranks.pass_(30.0) == ""
    assert ranks.pass_(2.0) == (
        "rank 1 is at step 7 (forward), the others wait at step 7 (collective); no progress for 30 s"
    )


def test_ranks_as_far_as_each_other_are_told_apart_by_what_their_processes_do(
    ranks: Ranks, sleepers: dict[int, int]
) -> None:
    os.kill(sleepers[2], signal.SIGSTOP)
    wait_for_state(sleepers[2], "T")
    for rank in range(3):
        ranks.stand(rank, 7, 4, "backward")
    found = ranks.pass_(32.0)
    assert found.startswith(
        "rank 2 is at step 7 (backward, stopped), the others wait at step 7 (backward); no progress"
    )


def test_as_long_as_one_rank_moves_nobody_hangs(ranks: Ranks) -> None:
    for beat in range(10):
        ranks.stand(0, 7, beat, "forward")
        ranks.stand(1, 7, 0, "forward")
        ranks.stand(2, 7, 0, "forward")
        assert ranks.pass_(20.0) == ""


def test_loading_compiling_and_saving_take_as_long_as_they_take(ranks: Ranks) -> None:
    ranks.stand(0, 8, 4, "save", limit_s=0.0)
    ranks.stand(1, 9, 2, "collective")
    ranks.stand(2, 9, 2, "collective")
    assert ranks.pass_(4000.0) == ""


def test_ranks_that_have_not_all_come_are_not_judged(ranks: Ranks) -> None:
    ranks.stand(0, 1, 1, "forward")
    assert ranks.pass_(100.0) == ""


def test_a_supervisor_that_was_held_up_itself_accuses_nobody(ranks: Ranks) -> None:
    for rank in range(3):
        ranks.stand(rank, 7, 4, "forward")
    assert ranks.pass_(1.0) == ""
    ranks.clock.now += 3600.0
    assert ranks.watch.hang() == ""


def test_the_last_error_that_a_rank_said_is_found_among_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "rank0.out"
    assert last_error(path) == ""
    path.write_text(
        "\n".join([json.dumps({"error": "old"}), "[1, 2", json.dumps({"error": "new"}), "{}", ""])
    )
    assert last_error(path) == "new"
