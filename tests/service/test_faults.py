"""Runs on a pool are cancelled, killed and cut off from their servers; nothing is lost or left behind.

Prints the seconds that things took; `pytest -rP` shows them. With ATELIER_PATIENCE set the servers stay away
for 120 s instead of 40.
"""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from atelier.infra.stack.deployments import SILENCE
from atelier.infra.tracking.curve import is_kept
from tests.flow.served import Served, wait_for
from tests.service.training import (
    ENDS,
    EVERY,
    LENGTH,
    ORPHAN_S,
    SLOT_S,
    STEPS,
    WORDS,
    Training,
    are_gone,
    best_rate,
    copy_data,
    curve,
    digests,
    drawn,
    flow_processes,
    forget_all_but_data,
    gangs,
    gaps,
    kill,
    run_here,
    seconds_until,
    stale,
    steps,
    told,
    values,
)

pytestmark = pytest.mark.service
OUTAGE_S = 120.0 if os.environ.get("ATELIER_PATIENCE") else 40.0


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in which the training ran through, without a stack."""
    root = tmp_path_factory.mktemp("calm") / "store"
    run_here(root, "pretrain", "experiment=tiny", *WORDS, *LENGTH, "tracker=none")
    return root


@pytest.fixture
def stack(served: Served, calm: Path) -> Iterator[Served]:
    """The module's stack: the data is there, nothing is trained yet, every part runs."""
    copy_data(calm, served.root)
    forget_all_but_data(served.root)
    yield served
    served.up()
    wait_for(lambda: not flow_processes(served.root) and not served.ranks(), 120, "the end of all runs")


@pytest.mark.parametrize("who", ["parent", "child"])
def test_a_cancelled_run_leaves_no_process_and_a_checkpoint_that_the_same_command_goes_on_from(
    stack: Served, calm: Path, who: str
) -> None:
    training = Training(stack).until_step(2 * EVERY)
    [child] = training.runs()
    gang, cancelled = stack.ranks(), training.parent if who == "parent" else child["id"]
    asked = {"type": "CANCELLING", "name": "Cancelling"}
    stack.api("POST", f"/flow_runs/{cancelled}/set_state", {"state": asked, "force": False})
    quiet_s = seconds_until(lambda: are_gone(gang), ORPHAN_S, "the end of supervisor and ranks")
    assert training.wait(60)["type"] == "CANCELLED"
    assert stack.wait_final(child["id"], 60)["type"] == "CANCELLED"
    assert not stack.ranks() and not (stack.root / "model").exists()
    newest = max(steps(stack.root))
    assert newest >= told(stack.root), "a stop writes a checkpoint of its own step"
    print(f"cancel of the {who}: no process after {quiet_s} s, checkpoint {newest}")
    done = training.again()
    assert done.returncode == 0, done.stdout + done.stderr
    assert digests(stack.root) == digests(calm)
    assert values(stack.root) == values(calm)


def test_a_run_whose_worker_has_died_is_cancelled_all_the_same(stack: Served) -> None:
    """A worker hears of cancellations for its flows; without one (or with one that has stopped listening, as
    Prefect's do when the server was away for half a minute) the flow's process sees it itself.
    """
    training = Training(stack, steps=20 * STEPS).until_step(EVERY)  # it must not end by itself
    [child], gang = training.runs(), stack.ranks()
    kill(stack.pid("worker-light"))
    asked = {"type": "CANCELLING", "name": "Cancelling"}
    stack.api("POST", f"/flow_runs/{training.parent}/set_state", {"state": asked, "force": False})
    quiet_s = seconds_until(lambda: are_gone(gang), 45, "the end of supervisor and ranks")
    assert training.wait(60)["type"] == stack.wait_final(child["id"], 60)["type"] == "CANCELLED"
    print(f"cancel of a parent without worker: no process after {quiet_s} s")


@pytest.mark.parametrize(
    "victims",
    [("supervisor",), ("flow",), ("worker",), ("worker", "flow", "supervisor")],
    ids=["supervisor", "flow", "worker", "all"],
)
def test_whoever_is_killed_in_training_nothing_is_orphaned_and_the_parent_starts_it_again(
    stack: Served, calm: Path, victims: tuple[str, ...]
) -> None:
    training = Training(stack).until_step(2 * EVERY)
    [child] = training.runs()
    [supervisor], flow = training.supervisors(), training.flow()
    pids = {"supervisor": supervisor, "flow": flow, "worker": stack.pid("worker-local")}
    gang = stack.ranks()
    for victim in victims:
        kill(pids[victim])
    quiet_s = seconds_until(
        lambda: are_gone([*gang, flow]), ORPHAN_S, "the end of supervisor, ranks and flow"
    )
    began = time.monotonic()
    stack.up()  # at once, as a user would: it starts the worker, if that was hit, and nothing else
    wait_for(lambda: stack.state(child["id"])["type"] in ENDS, SLOT_S, "a free slot")
    slot_s = quiet_s + time.monotonic() - began
    said = stack.state(child["id"])
    print(
        f"{victims} killed: no process after {quiet_s} s, slot free after {slot_s:.1f} s: {said['message']}"
    )
    assert said["type"] == "CRASHED" and slot_s < SLOT_S
    if victims == ("worker",):
        assert said["message"] == "its worker died; it stopped at a checkpoint"
    state = training.wait()
    assert state["type"] == "COMPLETED", state
    assert len(training.runs()) == 2 and stale(stack) == []
    assert digests(stack.root) == digests(calm)
    assert values(stack.root) == values(calm)


@pytest.mark.parametrize("server", ["prefect", "mlflow"])
def test_a_server_that_is_away_costs_a_training_nothing_and_its_curve_no_point(
    stack: Served, calm: Path, server: str
) -> None:
    steps = int(best_rate(calm) * (OUTAGE_S + 60))
    training = Training(stack, "tracker=mlflow", steps=steps, every=200).until_step(200)
    os.kill(stack.pid(server), signal.SIGTERM if server == "mlflow" else signal.SIGKILL)
    left, deadline = time.time(), time.monotonic() + OUTAGE_S
    wait_for(
        lambda: time.monotonic() > deadline or not training.supervisors(), OUTAGE_S + 10, "the outage's end"
    )
    assert training.supervisors(), (
        "training has ended in the outage: either it was hit, or it is too short to tell"
    )
    stack.up()
    back = time.time()
    state = training.wait(900)
    assert state["type"] == "COMPLETED", state
    assert len(gangs(stack.root)) == len(training.runs()) == 1
    found = gaps(stack.root)
    assert len(found) == steps - 1 and found[-1][0] > back
    usual = max(gap for moment, gap in found if not left < moment < back)
    worst = max(gap for moment, gap in found if left < moment < back)
    print(f"{server} away for {back - left:.0f} s: longest step {worst:.2f} s, otherwise {usual:.2f} s")
    assert worst < max(5 * usual, 1.0)
    assert drawn(stack) == [step for step in range(1, steps + 1) if is_kept(step) or step == steps]


@pytest.mark.parametrize("message", [SILENCE, "somebody says so"], ids=["silence", "mistake"])
def test_a_run_that_is_called_crashed_while_it_trains_gets_no_second_gang_and_completes(
    stack: Served, calm: Path, message: str
) -> None:
    training = Training(stack, steps=2 * STEPS).until_step(2 * EVERY)
    [child] = training.runs()
    for run in (child["id"], training.parent):
        said = {"type": "CRASHED", "name": "Crashed", "message": message}
        stack.api("POST", f"/flow_runs/{run}/set_state", {"state": said, "force": True})
        if message != SILENCE:
            break  # a parent that others end is theirs
    if message == SILENCE:
        both = (child["id"], training.parent)
        back_s = seconds_until(
            lambda: all(stack.state(run)["type"] == "RUNNING" for run in both),
            30,
            "its process to come forward",
        )
        print(f"running again after {back_s} s")
    state = training.wait()
    assert state["type"] == "COMPLETED", state
    assert len(gangs(stack.root)) == 1
    assert len(training.runs()) == (1 if message == SILENCE else 2)
    assert [line["step"] for line in curve(stack.root)] == list(range(1, 2 * STEPS + 1))
