"""A training that is stopped or killed, in any of its processes, resumes: same command, same bits."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest

from tests.faults.command import EVERY, OWN_SERVER, STEPS, Command, CommandStore, Curve, held, is_told

Start = Callable[..., Command]


def goes_on(command_store: CommandStore, expected: Curve) -> None:
    """The same command again resumes at once and ends in the model and curve of an uninterrupted run."""
    newest = max(command_store.steps())
    code, out, err = command_store.finish()
    assert code == 0, out + err
    assert f"train: continues from step {newest}" in out
    assert command_store.curve() == expected


def is_held_under_way(command_store: CommandStore, task: str) -> bool:
    """Stop the task's process; True, and it stays stopped, when it has begun and is not done."""
    for rank in command_store.processes("atelier.engine.prepare"):
        with suppress(ProcessLookupError):
            os.kill(rank, signal.SIGSTOP)
            if is_under_way(command_store, task):
                return True
            os.kill(rank, signal.SIGCONT)
    return False


def is_under_way(command_store: CommandStore, task: str) -> bool:
    """Whether a gang of `task` has told of progress."""
    return any(path.stat().st_size for path in command_store.root.glob(f"scratch/*/*-{task}/rank0.out"))


def stopped_at(command_store: CommandStore) -> int:
    """The step at which a gang says that it stopped."""
    [path] = command_store.root.glob("scratch/*/*-train/rank0.out")
    [step] = [said["stopped"] for said in map(json.loads, path.read_text().splitlines()) if "stopped" in said]
    return step


def test_an_uninterrupted_run_logs_every_step_once(expected: Curve) -> None:
    assert [step for step, _, _ in expected.lines] == list(range(1, STEPS + 1))


def test_ctrl_c_in_training_leaves_a_checkpoint_and_no_process_and_the_same_command_goes_on(
    command_store: CommandStore, start: Start, expected: Curve
) -> None:
    command = start(env=OWN_SERVER)  # with a Prefect server of its own, as at a terminal
    command.until_training()
    [rank] = command_store.processes("atelier.engine.train")
    held(rank, command.interrupt)
    assert command.wait(30.0) == 1
    assert command.text.count("stopping: running tasks write a checkpoint") == 1
    assert "the same command continues from there" in command.text
    assert (
        "Traceback" not in command.text
        and "ERROR" not in command.text
        and "error" not in command.text.lower()
    )
    command_store.wait_for_quiet()
    assert max(command_store.steps()) == stopped_at(command_store), (
        "a stop writes a checkpoint of its own step"
    )
    assert not command_store.records("model") and command_store.runs()[-1]["status"] == "stopped"
    goes_on(command_store, expected)


def test_sigterm_stops_like_ctrl_c(command_store: CommandStore) -> None:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # of who forgets to handle it
    try:
        with command_store.once_training(
            lambda rank: held(rank, partial(os.kill, os.getpid(), signal.SIGTERM))
        ):
            code, out, err = command_store.finish()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert code == 1
    assert "the same command continues from there" in err and "Traceback" not in out + err
    command_store.wait_for_quiet()
    assert max(command_store.steps()) == stopped_at(command_store)


@pytest.mark.slow
def test_ctrl_c_twice_leaves_at_once_and_the_gang_still_ends_at_a_checkpoint(
    command_store: CommandStore, start: Start
) -> None:
    command = start(env=OWN_SERVER)
    command.until_training()
    [rank] = command_store.processes("atelier.engine.train")
    os.kill(rank, signal.SIGSTOP)  # a rank that cannot answer: the first request alone would wait for it
    command.interrupt()
    command.until(lambda: "again to leave at once" in command.text, "answer")
    assert command.interrupt_until_it_ends() == 1  # the rank, which is stopped, would never answer
    os.kill(rank, signal.SIGCONT)
    command_store.wait_for_quiet()
    assert max(command_store.steps()) % EVERY


@pytest.mark.slow
def test_a_killed_flow_process_leaves_no_orphan_and_a_checkpoint(
    command_store: CommandStore, start: Start, expected: Curve
) -> None:
    command = start(env=OWN_SERVER)
    command.until_training()
    os.kill(command.process.pid, signal.SIGKILL)
    command.wait()
    command_store.wait_for_quiet()
    assert max(command_store.steps()) % EVERY
    goes_on(command_store, expected)


@pytest.mark.slow
def test_a_killed_supervisor_leaves_no_orphan_and_its_lease_is_taken_over(
    command_store: CommandStore, start: Start, expected: Curve
) -> None:
    command = start()
    command.until_training()
    command.kill("atelier.infra.launch.supervisor")
    assert command.wait(30.0) == 1
    assert "its supervisor was ended by SIGKILL" in command.text and "Traceback" not in command.text
    again = start()  # at once: it waits for the ranks that are left, no longer
    assert again.wait() == 0, again.text
    assert "continues from step" in again.text
    command_store.wait_for_quiet()
    assert command_store.curve() == expected


def test_a_killed_rank_is_started_again_from_the_last_checkpoint_on_the_same_trajectory(
    command_store: CommandStore, expected: Curve
) -> None:
    with command_store.once_training(lambda rank: os.kill(rank, signal.SIGKILL)):
        code, out, err = command_store.finish()
    assert code == 0, out + err
    assert "rank 0 was ended by SIGKILL; the gang starts again from step" in out + err
    assert command_store.curve() == expected
    assert len(command_store.runs()) == 1


@pytest.mark.slow
def test_ctrl_c_in_preparation_leaves_nothing_half_written_to_be_seen(
    command_store: CommandStore, start: Start
) -> None:
    for kind in ("tokens", "tokenizer", "corpus"):
        shutil.rmtree(command_store.root / kind)
        command = start()
        task = {"tokens": "encode", "tokenizer": "learn_tokenizer", "corpus": "curate"}[kind]
        command.until(lambda task=task: is_held_under_way(command_store, task), f"progress of {task}")
        [rank] = command_store.processes("atelier.engine.prepare")
        command.interrupt()
        command.until(lambda rank=rank: is_told(rank), "the signal to stop")  # else it may be done before
        os.kill(rank, signal.SIGCONT)
        assert command.wait(30.0) == 1, command.text
        assert f"{task}: stopped" in command.text and "Traceback" not in command.text
        command_store.wait_for_quiet()
        assert not command_store.records(kind)
    code, out, err = command_store.finish("corpus", "experiment=tiny", "tracker=none", "tokenizer=bpe512")
    assert code == 0, out + err
