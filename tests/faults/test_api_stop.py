"""A run started through `atelier.api` stops with its program, and resumes from its checkpoint."""

import os
import signal
from collections.abc import Iterator

import pytest

from tests.faults.command import EVERY, OWN_SERVER, TRAIN, Command, CommandStore, Curve

SCRIPT = """
import sys
from atelier.api import run
try:
    run(*sys.argv[1:], progress=True)
except KeyboardInterrupt:
    print("interrupted")
    sys.exit(7)
"""


@pytest.fixture
def program(command_store: CommandStore) -> Iterator[Command]:
    """A program that runs the training; its processes end with the test."""
    found = Command(command_store, TRAIN, OWN_SERVER, program=("-c", SCRIPT))
    yield found
    found.end()


def goes_on(command_store: CommandStore, expected: Curve) -> None:
    command_store.wait_for_quiet()
    newest = max(command_store.steps())
    assert newest % EVERY, "a stop writes a checkpoint of its own step"
    assert not command_store.records("model") and command_store.runs()[-1]["status"] == "stopped"
    code, out, err = command_store.finish()
    assert code == 0 and f"train: continues from step {newest}" in out, out + err
    assert command_store.curve() == expected


@pytest.mark.slow
def test_keyboard_interrupt_lets_the_run_write_a_checkpoint_and_is_raised_after_it(
    command_store: CommandStore, program: Command, expected: Curve
) -> None:
    program.until_training()
    os.kill(program.process.pid, signal.SIGINT)
    assert program.wait(30.0) == 7 and program.text.endswith("interrupted\n")
    assert program.text.count("stopping: running tasks write a checkpoint") == 1
    assert command_store.runs()[-1]["status"] == "stopped", "before it was raised"
    goes_on(command_store, expected)


@pytest.mark.slow
def test_a_second_interrupt_leaves_at_once_and_the_gang_still_ends_at_a_checkpoint(
    command_store: CommandStore, program: Command
) -> None:
    program.until_training()
    [rank] = command_store.processes("atelier.engine.train")
    os.kill(rank, signal.SIGSTOP)  # a rank that cannot answer: the first request alone would wait for it
    os.kill(program.process.pid, signal.SIGINT)
    program.until(lambda: "stopping" in program.text, "the first signal's answer")
    assert program.interrupt_until_it_ends() == 7
    os.kill(rank, signal.SIGCONT)
    command_store.wait_for_quiet()
    assert max(command_store.steps()) % EVERY


@pytest.mark.slow
def test_a_killed_program_leaves_no_process_and_a_checkpoint(
    command_store: CommandStore, program: Command, expected: Curve
) -> None:
    program.until_training()
    os.kill(program.process.pid, signal.SIGKILL)
    program.wait()
    goes_on(command_store, expected)
