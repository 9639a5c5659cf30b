"""A process of a run at a terminal, drawn from a seed, is killed at a drawn moment: the command ends, and run
again it gives the same bits. Six times; ATELIER_KILLS=30 makes that 30, ATELIER_SEED repeats a choice.
"""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.faults.command import EVERY, OWN_SERVER, STEPS, TRAIN, Command, CommandStore, Curve

pytestmark = pytest.mark.slow
SEED = int(os.environ.get("ATELIER_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
KILLS = int(os.environ.get("ATELIER_KILLS", "6"))
# what a list of processes shows of each
VICTIMS = {
    "rank": "-m atelier.engine.train",
    "supervisor": "-m atelier.infra.launch.supervisor",
    "fork server": "-m atelier.engine.io.fork_server",
    "Prefect's server": "-m atelier.flows.run.embedded_server",
    "command": "-m atelier pretrain",
}
MOST_RUNS = 3


def test_after_a_random_kill_the_command_ends_and_run_again_comes_to_the_same_bits(
    command_store: CommandStore, start: Callable[..., Command], expected: Curve, whole: CommandStore
) -> None:
    print(f"ATELIER_SEED={SEED} ATELIER_KILLS={KILLS}")
    choice = random.Random(SEED)
    killed: Counter[str] = Counter()
    for number in range(KILLS):
        kind = sorted(VICTIMS)[number % len(VICTIMS)]
        step = EVERY * choice.randrange(1, STEPS // EVERY - 1)
        store = CommandStore(command_store.root.with_name(f"store-{number}")).copy_data(whole)
        command = Command(store, TRAIN, OWN_SERVER)
        try:
            command.until_training(step)
            time.sleep(choice.uniform(0.0, 0.3))  # the moment is drawn, not a condition
            killed[kind] += kill(store, VICTIMS[kind])
            codes = [command.wait()]
            while codes[-1] and len(codes) < MOST_RUNS:
                again = Command(store, TRAIN, OWN_SERVER)
                codes.append(again.wait())
            print(f"{kind} at step {step}: exit codes {codes}")
            assert codes[-1] == 0, command.text
            assert "a fault in the program" not in command.text and "Traceback" not in command.text
            assert store.curve() == expected
            store.wait_for_quiet()
        finally:
            command.end()
    print(f"{KILLS} kills, {sum(killed.values())} of a process that was there: {dict(killed)}")


def kill(store: CommandStore, shown: str) -> int:
    """SIGKILL one process that is shown so; 0 when there is none any more."""
    for pid, words in store.processes().items():
        if shown in words:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                return 1
    return 0
