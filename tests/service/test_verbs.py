"""logs, cancel and open with the stack: a run on a pool, and a run in Prefect's queue."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from tests.flow.served import Served, wait_for

pytestmark = [pytest.mark.service, pytest.mark.slow]
WORDS = ["train.steps=150", "train.checkpoint_every=1000", "score.baselines=false"]


def test_a_run_on_a_pool_is_followed_and_cancelled_and_its_command_continues_it(served: Served) -> None:
    run = served.submit("pretrain", experiment="tiny", train_seed=41, overrides=WORDS)
    following = served.start("logs", run, "-f")
    log = served.root / "scratch"
    wait_for(lambda: any("/150 steps" in p.read_text() for p in log.glob("*/*/log.jsonl")), 120, "steps")
    done = served.atelier("cancel", run, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["was"] == "running" and found["status"] == "stopped" and 0 < found["steps"]["model"] < 150
    assert served.wait_final(run, 60)["type"] == "CANCELLED"
    assert {child["state"]["type"] for child in served.children(run)} <= {"CANCELLED", "COMPLETED"}
    assert not served.ranks()
    followed, _ = following.communicate(timeout=60)
    assert following.returncode == 0
    assert f"train: stopped at step {found['steps']['model']}, with a checkpoint" in followed
    states = [line for line in followed.splitlines() if line.endswith("train: running")]
    assert len(states) == 1  # the run and its task on the pool both tell it
    again = served.atelier(*found["command"].split()[1:])
    assert again.returncode == 0, again.stderr
    assert f"continues from step {found['steps']['model']}" in served.atelier("logs", "train").stdout

    pages = json.loads(served.atelier("open", run, "--json").stdout)["pages"]
    assert pages["prefect"] == f"{served.prefect}/v2/runs/flow-run/{run}"
    assert pages["mlflow"].startswith(f"{served.mlflow}/#/experiments/")
    model = json.loads(served.atelier("open", "model", "--json").stdout)
    assert model["what"] == "model" and model["url"].startswith(f"{served.mlflow}/#/models/model/versions/")


def test_a_run_in_the_queue_says_so_and_is_cancelled_before_it_begins(served: Served) -> None:
    found = served.api("GET", "/deployments/name/pretrain/atelier")
    moment = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    state = {"type": "SCHEDULED", "state_details": {"scheduled_time": moment}}
    body = {"parameters": {"experiment": "tiny"}, "state": state}
    run = served.api("POST", f"/deployments/{found['id']}/create_flow_run", body)["id"]
    said = served.atelier("logs", run[:8])
    assert said.returncode == 0 and "has not begun: is scheduled for" in said.stderr
    following = served.start("logs", run, "-f")
    done = served.atelier("cancel", run[:8])
    assert done.returncode == 0 and done.stdout.strip().endswith("is cancelled; it had not begun")
    assert served.state(run)["type"] == "CANCELLED"
    assert "ended before it began" in following.communicate(timeout=60)[0]
