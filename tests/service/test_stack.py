"""`atelier up`, runs on its pools, `atelier down`."""

import json
import signal
import subprocess
from collections.abc import Iterable
from typing import Any

import pytest

from tests.flow.served import Served, processes, wait_for

pytestmark = pytest.mark.service


def test_a_run_on_the_pool_makes_what_a_run_here_makes(served: Served) -> None:
    done = served.atelier("pretrain", "experiment=tiny", "pool=local")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "completed" in done.stdout and "submitted: " in done.stdout
    again = served.atelier("plan", "pretrain", "experiment=tiny", "--json")
    assert {task["state"] for task in json.loads(again.stdout)["tasks"]} == {"reuse"}


def test_the_form_and_the_command_line_are_the_same_run(served: Served) -> None:
    words = {"experiment": "tiny", "train_seed": 7, "overrides": ["tracker=none"]}
    state = served.wait_final(served.submit("corpus", **{k: words[k] for k in ("experiment", "overrides")}))
    assert state["type"] == "COMPLETED", state
    run = served.submit("pretrain", **words)
    state = served.wait_final(run)
    assert state["type"] == "COMPLETED", state
    plan = served.atelier("plan", "pretrain", "experiment=tiny", "train.seed=7", "--json")
    assert {task["state"] for task in json.loads(plan.stdout)["tasks"]} == {"reuse"}


def test_a_program_runs_on_the_pool_and_here_and_gets_the_pages(served: Served) -> None:
    script = (
        "import json, sys; from atelier.api import run;"
        "result = run('pretrain', *sys.argv[1:]);"
        "print(json.dumps([result.links, list(result.models), result.status]))"
    )
    for words in (["train.seed=21", "pool=local"], ["train.seed=22"]):
        done = subprocess.run(
            [served.python, "-c", script, "experiment=tiny", *words], env=served.environment,
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        links, models, status = json.loads(done.stdout)
        assert models == ["model"] and status == "finished"
        assert links["prefect.url"].startswith(served.prefect) and links["mlflow.flow"].startswith(
            served.mlflow
        )


def test_a_bad_value_of_the_form_fails_in_seconds_with_the_message_of_the_command_line(
    served: Served,
) -> None:
    state = served.wait_final(served.submit("pretrain", overrides=["train.stepz=3"]), 60)
    assert state["type"] == "FAILED"
    assert "did you mean steps" in state["message"]


def test_a_gang_of_two_workers_trains_and_a_missing_one_is_named(served: Served) -> None:
    words = ("pretrain", "experiment=tiny", "pool=pair", "parallel.shard=2", "tracker=none", "train.seed=9")
    refused = served.atelier(*words)
    assert refused.returncode == 2
    assert "no worker serves the pool 'local_b'; start one: atelier worker local_b" in refused.stderr
    served.add_worker("local_b")
    wait_for(lambda: _is_served(served), 60, "a worker of local_b")
    done = served.atelier(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    record = next(
        record
        for path in (served.root / "model").glob("*/record.json")
        if (record := json.loads(path.read_text()))["name"] == "model"
        and record["provenance"]["layouts"][0]["shard"] == 2
    )
    assert record["summary"]


def _is_served(served: Served) -> bool:
    workers = served.api("POST", "/work_pools/local_b/workers/filter", {})
    return any(worker["status"] == "ONLINE" for worker in workers)


def test_a_cancelled_run_that_is_retried_on_the_page_goes_on_from_its_checkpoint(served: Served) -> None:
    words = ["train.steps=400", "train.checkpoint_every=20", "tracker=none"]
    run = served.submit("pretrain", experiment="tiny", train_seed=31, overrides=words)
    folder = served.root / "trajectory"
    before = set(folder.glob("*/checkpoints/step-*"))
    wait_for(lambda: set(folder.glob("*/checkpoints/step-*")) - before, 120, "a checkpoint")
    served.api("POST", f"/flow_runs/{run}/set_state", {"state": {"type": "CANCELLING"}})
    assert served.wait_final(run, 60)["type"] == "CANCELLED"

    def times_cancelled() -> (
        int
    ):  # by the flow itself, then by its worker, which would undo what comes between
        states = served.api("GET", f"/flow_run_states/?flow_run_id={run}")
        return sum(state["type"] == "CANCELLED" for state in states)

    wait_for(lambda: times_cancelled() == 2, 30, "the worker to be done with the run")
    state = {"type": "SCHEDULED", "name": "AwaitingRetry"}
    served.api("POST", f"/flow_runs/{run}/set_state", {"state": state, "force": True})
    wait_for(lambda: served.state(run)["type"] == "RUNNING", 60, "the run to be running again")
    assert served.wait_final(run, 300)["type"] == "COMPLETED"
    logs = served.api("POST", "/logs/filter", {"limit": 200, "sort": "TIMESTAMP_DESC"})
    assert any("continues from step" in line["message"] for line in logs)


def test_up_again_starts_nothing_and_down_leaves_nothing(served: Served) -> None:
    before = {part: served.pid(part) for part in ("prefect", "mlflow", "worker-local", "worker-light")}
    assert "starting" not in served.up().stdout
    assert {part: served.pid(part) for part in before} == before
    served.down()
    left = [words for words in processes().values() if str(served.root) in " ".join(words)]
    assert left == []
    assert not before.values() & processes().keys()
    served.up()


def test_a_free_slot_goes_to_the_urgent_run_first(served: Served) -> None:
    def trainings(run: str) -> list[dict[str, Any]]:
        return [child for child in served.children(run) if child["name"] == "train"]

    def submit(seed: int, *more: str) -> str:
        words = ["tracker=none", "score.max_tokens=500", "train.eval_sequences=4", *more]
        return served.submit("pretrain", experiment="tiny", train_seed=seed, overrides=words)

    def are(runs: Iterable[str], state: str) -> bool:
        return all([child["state"]["type"] for child in trainings(run)] == [state] for run in runs)

    long = [submit(seed, "train.steps=20000", "train.checkpoint_every=2000") for seed in (41, 42)]
    wait_for(lambda: are(long, "RUNNING"), 200, "a training in each of the two slots")
    queued = {queue: submit(seed, f"pool.queue={queue}") for seed, queue in ((43, "default"), (44, "urgent"))}
    wait_for(lambda: are(queued.values(), "SCHEDULED"), 120, "two trainings that wait")
    served.api("POST", f"/flow_runs/{long[0]}/set_state", {"state": {"type": "CANCELLING"}})
    for run in queued.values():
        assert served.wait_final(run)["type"] == "COMPLETED"
    starts = {queue: trainings(run)[0]["start_time"] for queue, run in queued.items()}
    assert starts["urgent"] < starts["default"]
    served.api("POST", f"/flow_runs/{long[1]}/set_state", {"state": {"type": "CANCELLING"}})
    assert served.wait_final(long[1], 60)["type"] == "CANCELLED"


@pytest.mark.parametrize("pool", ["light", "local"])
def test_a_run_that_is_stopped_while_its_process_starts_is_cancelled_in_seconds(
    served: Served, pool: str
) -> None:
    """The parent's process starts on the pool light, its first task's on local."""
    seed = {"light": 31, "local": 32}[pool]
    words = ("pretrain", "experiment=tiny", "pool=local", "tracker=none", f"train.seed={seed}")
    known = {run["id"] for run in served.api("POST", "/flow_runs/filter", {})}
    command = served.start(*words)

    def starting() -> bool:
        runs = served.api("POST", "/flow_runs/filter", {})
        mine = [run for run in runs if run["id"] not in known and run["work_pool_name"] == pool]
        return any(run["state_type"] == "PENDING" for run in mine)

    wait_for(starting, 60, "a run that starts")
    command.send_signal(signal.SIGINT)
    out, _ = command.communicate(timeout=60)
    assert command.returncode == 1 and "cancelled" in out, out
    ended = [run for run in served.api("POST", "/flow_runs/filter", {}) if run["id"] not in known]
    assert {run["state_name"] for run in ended} == {"Cancelled"}


def test_a_past_run_is_run_again_from_the_page_and_from_the_command_line_on_the_pool(served: Served) -> None:
    done = served.atelier("pretrain", "experiment=tiny", "train.seed=31", "pool=local")
    assert done.returncode == 0, done.stdout + done.stderr
    past = newest_run(served)
    run = served.submit("rerun", run=past["id"], from_task="score", overrides=["score.max_tokens=300"])
    state = served.wait_final(run)
    assert state["type"] == "COMPLETED", state
    new = newest_run(served)
    assert new["rerun_of"] == past["id"] and new["links"]["flow_run"] == run
    made = {name for name, state in new["states"].items() if state == "done"}
    assert made == {"score", "report"}
    about = served.api("GET", f"/flow_runs/{run}")
    assert about["name"].endswith(new["id"]) and about["parameters"]["run"] == past["id"]

    done = served.atelier("rerun", past["id"], "score.max_tokens=301")
    assert done.returncode == 0, done.stdout + done.stderr
    again = newest_run(served)
    assert again["rerun_of"] == past["id"] and "score.max_tokens=301" in again["overrides"]
    found = served.api("GET", f"/flow_runs/{again['links']['flow_run']}")
    assert found["parameters"]["run"] == past["id"]

    wrong = served.wait_final(
        served.submit("rerun", run=past["id"], from_task="score", overrides=["train.seed=3"])
    )
    assert (
        wrong["type"] == "FAILED" and "train.seed=3 changes train, which is before score" in wrong["message"]
    )


def newest_run(served: Served) -> dict[str, Any]:
    """The manifest of the run that began last."""
    found = [json.loads(place.read_text()) for place in (served.root / "runs").glob("*.json")]
    return max(found, key=lambda one: one["started"])
