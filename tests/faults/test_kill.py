"""Killed at any moment and run again: the same bits as if nothing had happened."""

import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from engine.spec.parallel import Parallel
from engine.spec.run import RunFile
from tests.engine.house import ONE, House, model, role, student, train

STEPS = 30
ROLES = {
    "teacher": role(shape=model(32, dropout=0.1)),
    "open": student(shape=model(16, dropout=0.1)),
    "gated": student(gate=0.05),
    "late": student(start=11),
}
HOW = train(STEPS, checkpoint_every=3, eval_every=5)


def gang(house: House, run: RunFile, *, world: int, kill_after: float = 0.0) -> list[int]:
    """Run the gang; with `kill_after` a random rank of it is killed so many seconds after the first step. The
    exit codes.
    """
    processes = house.processes(run, world=world)
    if kill_after and has_started(processes[0]):
        time.sleep(kill_after)
        random.choice(processes).kill()
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert kill_after or process.returncode == 0, errors
    return [process.returncode for process in processes]


def has_started(process: subprocess.Popen[str]) -> bool:
    assert process.stdout is not None
    return any("progress" in line for line in iter(process.stdout.readline, ""))


def assert_same(mine: House, other: House) -> None:
    for name in ROLES:
        assert mine.curve(name) == other.curve(name)
        assert mine.weights(name) == other.weights(name)
        assert mine.summary(name) == other.summary(name)


@pytest.mark.parametrize("world", [1, 2])
def test_killed_at_three_random_moments_and_run_again_it_ends_with_the_same_bits(
    tmp_path: Path, world: int
) -> None:
    straight, killed = House(tmp_path / "straight"), House(tmp_path / "killed")
    layout: Parallel = ONE.model_copy(update={"shard": world})
    began = time.monotonic()
    gang(straight, straight.run_file(straight.training(ROLES, HOW), layout=layout), world=world)
    whole = max(0.5, time.monotonic() - began - 4)
    codes = []
    for _ in range(3):
        run = killed.run_file(killed.training(ROLES, HOW), layout=layout)
        codes += gang(killed, run, world=world, kill_after=random.uniform(0.02, whole / 3))
    assert -signal.SIGKILL in codes
    gang(killed, killed.run_file(killed.training(ROLES, HOW), layout=layout), world=world)
    assert_same(killed, straight)


def test_a_gang_of_which_one_rank_is_asked_to_stop_stops_whole_at_one_step(tmp_path: Path) -> None:
    house = House(tmp_path)
    run = house.run_file(
        house.training({"model": role()}, train(4000, checkpoint_every=10**6)),
        layout=ONE.model_copy(update={"shard": 2}),
    )
    processes = house.processes(run, world=2)
    assert has_started(processes[0])
    processes[1].terminate()
    for process in processes:
        process.communicate(timeout=60)
        assert process.returncode == 75
    (step,) = house.steps("model")
    assert house.curve("model")[-1]["step"] == step
