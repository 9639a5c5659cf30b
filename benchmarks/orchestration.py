"""Cost of a task that runs on a pool: the same DAG of no-ops through Atelier and through bare Prefect
(run_deployment from tasks), on one server, one worker. And `atelier plan` of a DAG of fifty tasks.

python benchmarks/orchestration.py [--wide 2] [--deep 3] [--repeats 3]    goals: 1.3 times bare; a plan in 3 s

Both parents run on the light pool; every no-op is a run on the pool `local` with two slots. Measured is the
time of the parent run, from the server's records, over the number of tasks; the order rotates.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent), str(HERE)]

from machine import keep

from tests.checkout import copied
from tests.flow import served

TASK = '''"""noop: nothing, as an artifact."""

from atelier.engine.io.artifact import ArtifactOutput
from atelier.infra.dag import Node, Product, Reference, declare, input_of
from atelier.infra.run.context import RunContext


def noop(name: str, salt: int, after: list[Reference]) -> Reference:
    parents = {f"before{i}": one.fingerprint for i, one in enumerate(after)}
    product = Product(
        kind="labels", name=name, version=1, identity={"name": name, "salt": salt}, parents=parents
    )
    inputs = {f"before{i}": input_of(one) for i, one in enumerate(after)}
    node = Node(name=name, task="noop", products={"out": product}, inputs=inputs)
    return declare(node, after)["out"]


def run(node: Node, context: RunContext) -> None:
    def build(payload: str) -> None:
        output = ArtifactOutput(payload)
        output.add_json("nothing.json", {})
        output.close({})

    context.here(node, "out", build)
'''
FLOW = '''"""noops: layers of tasks that do nothing.

atelier noops wide=2 deep=3
"""

from atelier.tasks.noop import noop


def noops(wide: int, deep: int, salt: int) -> None:
    before = []
    for layer in range(deep):
        before = [noop(f"n{layer}.{i}", salt, before) for i in range(wide)]
'''
YAML = """# atelier noops wide=2 deep=3
defaults:
  - base
  - _self_
wide: 2
deep: 3
salt: 0
"""
BARE = """from prefect import flow, task
from prefect.deployments import run_deployment


@flow
def bare_noop():
    return None


@task
def bare_task(before):
    run = run_deployment("bare-noop/bare", as_subflow=True, poll_interval=1)
    assert run.state.is_completed()


@flow
def bare_parent(wide: int, deep: int):
    before = []
    for _ in range(deep):
        before = [bare_task.submit(before) for _ in range(wide)]
    for future in before:
        future.wait()
"""


def project(folder: Path) -> Path:
    """A copy of this project with a flow and a task more: one file each, and a yaml."""
    copied(folder)
    (folder / "tasks" / "noop.py").write_text(TASK)
    (folder / "flows" / "noops.py").write_text(FLOW)
    (folder / "conf" / "noops.yaml").write_text(YAML)
    (folder / "bare.py").write_text(BARE)
    return folder


def deploy_bare(stack: served.Served, folder: Path) -> None:
    for flow, pool in (("bare-noop", "local"), ("bare-parent", "light")):
        flow_id = stack.api("POST", "/flows/", {"name": flow})["id"]
        body = {
            "name": "bare",
            "flow_id": flow_id,
            "entrypoint": f"{folder}/bare.py:{flow.replace('-', '_')}",
            "work_pool_name": pool,
            "pull_steps": [{"prefect.deployments.steps.set_working_directory": {"directory": str(folder)}}],
        }
        stack.api("POST", "/deployments/", body)


def seconds(stack: served.Served, deployment: str, parameters: Mapping[str, object]) -> float:
    """Duration of a parent run."""
    found = stack.api("GET", f"/deployments/name/{deployment}")
    run = stack.api("POST", f"/deployments/{found['id']}/create_flow_run", {"parameters": parameters})
    state = stack.wait_final(run["id"], 600)
    assert state["type"] == "COMPLETED", state
    whole = stack.api("GET", f"/flow_runs/{run['id']}")
    start, end = (datetime.fromisoformat(whole[key]) for key in ("start_time", "end_time"))
    return (end - start).total_seconds()


def plan_seconds(stack: served.Served) -> float:
    """`atelier plan` of fifty no-ops, as a process."""
    started = time.perf_counter()
    done = stack.atelier("plan", "noops", "wide=5", "deep=10", "--json")
    assert len(json.loads(done.stdout)["tasks"]) == 50, done.stderr
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wide", type=int, default=2)
    parser.add_argument("--deep", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    chosen = parser.parse_args()
    size = {"wide": chosen.wide, "deep": chosen.deep}
    with tempfile.TemporaryDirectory() as base:
        folder = project(Path(base) / "project")
        stack = served.Served(Path(base) / "store", folder)
        try:
            stack.up()
            deploy_bare(stack, folder)
            plans = [plan_seconds(stack) for _ in range(chosen.repeats)]
            taken: dict[str, list[float]] = {"ours": [], "bare": []}
            for i in range(chosen.repeats):
                for which in ("ours", "bare") if i % 2 else ("bare", "ours"):
                    if which == "ours":
                        words = {
                            "overrides": [*(f"{k}={v}" for k, v in size.items()), f"salt={i}", "tracker=none"]
                        }
                        took = seconds(stack, "noops/atelier", words)
                    else:
                        took = seconds(stack, "bare-parent/bare", dict(size))
                    taken[which].append(took / (chosen.wide * chosen.deep))
                    print(f"round {i + 1}: {which} {taken[which][-1]:.2f} s a task", flush=True)
        finally:
            subprocess.run(
                [sys.executable, "-m", "atelier", "down"], env=stack.environment, cwd=folder, check=False
            )
        medians = {which: round(statistics.median(found), 2) for which, found in taken.items()}
        keep(
            "orchestration",
            {
                "seconds_a_task": medians,
                "all": {which: [round(x, 2) for x in found] for which, found in taken.items()},
                "ratio": round(medians["ours"] / medians["bare"], 2),
                "goal": 1.3,
                "plan_of_50_tasks_s": round(statistics.median(plans), 2),
                "plan_goal_s": 3.0,
                "dag": size,
            },
        )


if __name__ == "__main__":
    main()
