"""Killed at any moment and run again: the same bits as without a kill."""

import os
import random
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from atelier.engine.checkpoint.manifest import MANIFEST
from atelier.engine.io.storage import TEMPORARY
from tests.engine.trainings import ONE, TrainingSetup, model, role, student, train
from tests.forks import Rank

SEED = int(os.environ.get("ATELIER_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
STEPS = 30
ROLES = {
    "teacher": role(shape=model(32, dropout=0.1)),
    "open": student(shape=model(16, dropout=0.1)),
    "gated": student(gate=0.05),
    "late": student(start=11),
}
HOW = train(STEPS, checkpoint_every=3, eval_every=5)
TRIES = 12  # runs in which a moment that lasts some milliseconds is waited for

Gang = list[Rank]


class Moment:
    """A moment of a training that can be seen from outside, and when in it the kill comes: after a drawn
    part of the seconds that an undisturbed training took for it.
    """

    def __init__(self, kind: str, rng: random.Random, undisturbed: "Undisturbed") -> None:
        self.kind, self.victims = kind, rng.choice(([0], [1], [0, 1])[: 2 * undisturbed.world - 1])
        seconds = {"start-up": undisturbed.start_s, "step": undisturbed.steps_s}.get(kind, 0.0)
        self.delay = rng.uniform(0.0, seconds)
        self.num = 1 if kind == "publish" else rng.randrange(1, 4)  # which sighting

    def is_now(self, command_store: TrainingSetup) -> bool:
        if self.kind == "publish":
            return any(command_store.output(name).exists() for name in ROLES)
        attempts = command_store.folder.glob(f"trajectory/*/checkpoints/{TEMPORARY}step-*")
        return any(self.kind == "save" or (attempt / MANIFEST).exists() for attempt in attempts)

    def hit(self, command_store: TrainingSetup, ranks: Gang) -> bool:
        """Kill the victims in this moment; False when it did not come before they ended."""
        if self.kind in ("start-up", "step"):
            if self.kind == "step" and not has_started(ranks[0]):
                return False
            time.sleep(self.delay)
        elif not self.is_caught(command_store, ranks):
            return False
        was_alive = [ranks[number].poll() is None for number in self.victims]
        for number in self.victims:
            ranks[number].kill()
        send(ranks, signal.SIGCONT)
        return all(was_alive)

    def is_caught(self, command_store: TrainingSetup, ranks: Gang) -> bool:
        """Stand all ranks still in the wanted sighting of the moment."""
        seen = False
        while all(rank.poll() is None for rank in ranks):
            time.sleep(0.0005)
            if not self.is_now(command_store):
                seen = False
            elif not seen:
                self.num -= 1
                seen = self.num > 0
                if not seen:
                    send(ranks, signal.SIGSTOP)
                    if self.is_now(command_store):
                        return True
                    send(ranks, signal.SIGCONT)
                    self.num = 1
        return False


def send(ranks: Gang, number: signal.Signals) -> None:
    for rank in ranks:
        with suppress(ProcessLookupError):
            os.kill(rank.pid, number)


def begin(command_store: TrainingSetup, world: int) -> Gang:
    layout = ONE.model_copy(update={"shard": world})
    return command_store.processes(
        command_store.run_file(command_store.training(ROLES, HOW), layout=layout), world=world
    )


def ended(ranks: Gang) -> list[int]:
    """The exit codes. As the supervisor does, ends what is left two seconds after a rank has failed."""
    deadline = time.monotonic() + 120
    while not any(rank.poll() for rank in ranks) and any(rank.poll() is None for rank in ranks):
        assert time.monotonic() < deadline, "the gang hangs"
        time.sleep(0.02)
    send([rank for rank in ranks if rank.poll() is None], signal.SIGTERM)
    for rank in ranks:
        try:
            rank.communicate(timeout=2)
        except subprocess.TimeoutExpired:
            rank.kill()
            rank.wait(timeout=60)
    return [rank.returncode for rank in ranks]


def has_started(process: Rank) -> bool:
    assert process.stdout is not None
    return any("progress" in line for line in iter(process.stdout.readline, ""))


def assert_same(mine: TrainingSetup, other: TrainingSetup) -> None:
    for name in ROLES:
        assert mine.curve(name) == other.curve(name)
        assert mine.weights(name) == other.weights(name)
        assert mine.summary(name) == other.summary(name)


class Undisturbed:
    """A training of `world` ranks without kills: its results, and the seconds of start-up and steps."""

    def __init__(self, folder: Path, world: int) -> None:
        self.setup, self.world = TrainingSetup(folder), world
        begun = time.monotonic()
        ranks = begin(self.setup, world)
        assert has_started(ranks[0])
        stepping = time.monotonic()
        self.start_s = stepping - begun
        assert ended(ranks) == [0] * world
        self.steps_s = time.monotonic() - stepping


def assert_killed_gives_same_bits(wanted: list[Moment], undisturbed: Undisturbed, tmp_path: Path) -> None:
    """Kill one training in each moment in turn, then let it end. A training that ended before the kill
    has the same bits too, and another begins.
    """
    world, number, killed = undisturbed.world, 0, TrainingSetup(tmp_path / "0")
    for moment in wanted:
        while True:
            number += 1
            assert number <= TRIES, f"{moment.kind}: not seen in {TRIES} runs"
            ranks = begin(killed, world)
            is_hit = moment.hit(killed, ranks)
            codes = ended(ranks)
            print(f"{moment.kind}: ranks {moment.victims} {'killed' if is_hit else 'missed'}, exit {codes}")
            if is_hit and 0 not in codes:
                assert {codes[rank] for rank in moment.victims} == {-signal.SIGKILL}
                break
            assert 0 in codes and set(codes) <= {0, -signal.SIGKILL}  # too late: all was published
            assert_same(killed, undisturbed.setup)
            killed = TrainingSetup(tmp_path / str(number))
            moment.delay /= 2
    assert ended(begin(killed, world)) == [0] * world
    assert_same(killed, undisturbed.setup)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    return Undisturbed(tmp_path_factory.mktemp("undisturbed"), 2)


@pytest.mark.parametrize(
    "chain", [0, *(pytest.param(number, marks=pytest.mark.slow) for number in (1, 2, 3))]
)
def test_a_gang_killed_in_start_up_step_save_commit_and_publish_ends_with_the_same_bits(
    pair: Undisturbed, tmp_path: Path, chain: int
) -> None:
    print(f"ATELIER_SEED={SEED}, chain {chain}")
    rng = random.Random(f"{SEED} {chain}")
    kinds = rng.sample(["start-up", "step", "save", "commit"], 4)
    wanted = [Moment(kind, rng, pair) for kind in (*kinds, "publish")]
    assert_killed_gives_same_bits(wanted, pair, tmp_path)


def test_a_process_killed_at_three_random_steps_ends_with_the_same_bits(tmp_path: Path) -> None:
    print(f"ATELIER_SEED={SEED}")
    alone, rng = Undisturbed(tmp_path / "undisturbed", 1), random.Random(SEED)
    assert_killed_gives_same_bits([Moment("step", rng, alone) for _ in range(3)], alone, tmp_path)


def test_a_gang_of_which_one_rank_is_asked_to_stop_stops_whole_at_one_step(tmp_path: Path) -> None:
    command_store = TrainingSetup(tmp_path)
    run = command_store.run_file(
        command_store.training({"model": role()}, train(4000, checkpoint_every=10**6)),
        layout=ONE.model_copy(update={"shard": 2}),
    )
    processes = command_store.processes(run, world=2)
    assert has_started(processes[0])
    processes[1].terminate()
    for process in processes:
        process.communicate(timeout=60)
        assert process.returncode == 75
    (step,) = command_store.steps("model")
    assert command_store.curve("model")[-1]["step"] == step
