"""python -m atelier.engine.train as a process: its input, its messages and how it stops."""

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.engine.trainings import TrainingSetup, role, train
from tests.forks import Rank


@pytest.fixture
def training_setup(tmp_path: Path) -> TrainingSetup:
    return TrainingSetup(tmp_path)


def finish(process: Rank) -> list[dict]:
    out, errors = process.communicate(timeout=120)
    assert errors == ""
    return [json.loads(line) for line in out.splitlines()]


def until_running(process: Rank) -> None:
    """Wait for the first step."""
    assert process.stdout is not None
    while "progress" not in process.stdout.readline():
        assert process.poll() is None


CONTROL_PLANE = re.compile(r"(prefect|mlflow|hydra|omegaconf|atelier\.(api|flows|tasks|infra))(\.|$)")


def test_a_training_imports_nothing_of_the_control_plane_and_no_compiler_where_it_compiles_nothing(
    training_setup: TrainingSetup,
) -> None:
    run = training_setup.run_file(training_setup.training({"model": role()}, train(4, eval_every=4)))
    (process,) = training_setup.processes(run, environment={"PYTHONPROFILEIMPORTTIME": "1"})
    _, errors = process.communicate(timeout=120)
    imported = {line.rpartition("|")[2].strip() for line in errors.splitlines()}
    assert process.returncode == 0 and {"torch.nn", "atelier.engine.loop"} <= imported
    assert not [name for name in imported if CONTROL_PLANE.match(name)]
    assert not imported & {"torch._dynamo", "torch._inductor", "torch.distributed.pipelining"}


def test_it_says_where_it_begins_how_far_it_is_and_publishes(training_setup: TrainingSetup) -> None:
    (process,) = training_setup.processes(
        training_setup.run_file(training_setup.training({"model": role()}, train(8)))
    )
    said = finish(process)
    assert process.returncode == 0
    assert said[0] == {"resumed": 0}
    assert said[-1]["progress"] == said[-1]["total"] == 8
    assert said[-1]["unit"] == "steps" and said[-1]["rate"] > 0 and set(said[-1]["loss"]) == {"model"}
    assert training_setup.summary("model")["step"] == 8


def test_progress_counts_over_all_trainings_and_comes_at_most_twice_a_second(
    training_setup: TrainingSetup,
) -> None:
    trainings = [
        training_setup.training({name: role()}, train(40, checkpoint_every=100)) for name in ("a", "b")
    ]
    began = time.monotonic()
    (process,) = training_setup.processes(training_setup.run_file(*trainings))
    said = [line for line in finish(process) if "progress" in line]
    assert [line["progress"] for line in said] == sorted(line["progress"] for line in said)
    assert said[-1]["progress"] == 80 and {line["total"] for line in said} == {80}
    assert len(said) <= 2 * (time.monotonic() - began) + 4


def test_a_bad_run_file_ends_with_one_line_and_exit_code_2(training_setup: TrainingSetup) -> None:
    run = training_setup.run_file(training_setup.training({"model": role()}, train(8)))
    (process,) = training_setup.processes(run.model_copy(update={"config": {"training": []}}))
    (said,) = finish(process)
    assert process.returncode == said["exit_code"] == 2
    assert said["error"].startswith("config.training: no such key; did you mean trainings?")


@pytest.mark.parametrize("way", ["SIGTERM", "SIGINT", "stop file", "death of the supervisor"])
def test_asked_to_stop_it_leaves_a_checkpoint_exits_75_and_goes_on_when_run_again(
    training_setup: TrainingSetup, way: str
) -> None:
    run = training_setup.run_file(
        training_setup.training({"model": role()}, train(4000, checkpoint_every=10**6, eval_every=10**6))
    )
    theirs, ours = os.pipe()
    os.set_inheritable(theirs, True)
    guarded: dict[str, Any] = {"environment": {"ATELIER_GUARD_FD": str(theirs)}, "pass_fds": (theirs,)}
    (process,) = training_setup.processes(run, **(guarded if way == "death of the supervisor" else {}))
    os.close(theirs)
    until_running(process)
    if way.startswith("SIG"):
        process.send_signal(getattr(signal, way))
    elif way == "stop file":
        Path(run.scratch).mkdir(parents=True, exist_ok=True)
        (Path(run.scratch) / "stop").touch()
    else:
        os.close(ours)
    said = finish(process)
    if way != "death of the supervisor":
        os.close(ours)
    assert process.returncode == 75
    step = said[-1]["stopped"]
    assert training_setup.steps("model") == [step] and 0 < step < 4000
    assert training_setup.curve("model")[-1]["step"] == step


def test_it_goes_on_when_nobody_reads_what_it_says(training_setup: TrainingSetup) -> None:
    (process,) = training_setup.processes(
        training_setup.run_file(training_setup.training({"model": role()}, train(8)))
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(timeout=60) == 0
    assert training_setup.summary("model")["step"] == 8
