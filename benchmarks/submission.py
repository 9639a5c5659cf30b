"""A sweep of forty jobs on a pool beside forty runs of bare Prefect: seconds a job until all are submitted,
while the pool is paused, and then until all are complete, two at a time.

python benchmarks/submission.py [--jobs 40] [--repeats 3]      ten minutes a repeat

A job is a parent run on the light pool with one no-op on the pool `local`. Atelier's way is
`atelier noops -m salt=range(0,40)`, from the start of the command to its end, its report included. Bare is a
script that calls run_deployment for each and waits for all. The order rotates.
"""

import argparse
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent), str(HERE)]

from machine import keep
from orchestration import deploy_bare, project

from atelier.infra.stack.stack import LIGHT
from tests.flow import served

AT_ONCE = 2
PATIENCE_S = 1800

SCRIPT = """import sys
import time
from prefect import get_client
from prefect.deployments import run_deployment

jobs = int(sys.argv[1])
runs = [
    run_deployment("bare-parent/bare", parameters={"wide": 1, "deep": 1}, timeout=0).id
    for _ in range(jobs)
]
with get_client(sync_client=True) as client:
    while runs:
        time.sleep(1)
        states = {run: client.read_flow_run(run).state for run in runs}
        assert not any(s.is_failed() or s.is_crashed() for s in states.values()), states
        runs = [run for run, state in states.items() if not state.is_final()]
"""


def batch(
    stack: served.Served, flow: str, command: list[str], env: dict[str, str], jobs: int
) -> dict[str, float]:
    """Seconds a job of the runs of `flow` that `command` starts and waits for: while nothing runs, until all
    are submitted; then, two at a time, until all are complete.
    """
    pool = f"/work_pools/{LIGHT}"
    stack.api("PATCH", pool, {"is_paused": True, "concurrency_limit": AT_ONCE})
    began = time.time()
    process = subprocess.Popen(command, env=env, cwd=stack.project, stdout=subprocess.DEVNULL)
    served.wait_for(lambda: len(created(stack, flow, began)) == jobs, 300, f"{jobs} runs")
    submitted = max(created(stack, flow, began)) - began
    stack.api("PATCH", pool, {"is_paused": False})
    clock = time.perf_counter()
    assert process.wait(PATIENCE_S) == 0
    return {"submitted": submitted / jobs, "complete": (time.perf_counter() - clock) / jobs}


def created(stack: served.Served, flow: str, since: float) -> list[float]:
    """When the runs of `flow` since then were created."""
    found = stack.api("POST", "/flow_runs/filter", {"flows": {"name": {"any_": [flow]}}, "limit": 200})
    times = [datetime.fromisoformat(run["created"]).timestamp() for run in found]
    return [one for one in times if one >= since]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    chosen = parser.parse_args()
    taken: dict[str, list[dict[str, float]]] = {"ours": [], "bare": []}
    with tempfile.TemporaryDirectory() as base:
        folder = project(Path(base) / "project")
        (folder / "submit.py").write_text(SCRIPT)
        stack = served.Served(Path(base) / "store", folder)
        try:
            stack.up()
            deploy_bare(stack, folder)
            env = stack.environment | variables(stack)
            for i in range(chosen.repeats):
                for which in ("ours", "bare") if i % 2 else ("bare", "ours"):
                    taken[which].append(one(stack, which, i, chosen.jobs, env))
                    print(f"round {i + 1}: {which} {taken[which][-1]}", flush=True)
        finally:
            subprocess.run(
                [sys.executable, "-m", "atelier", "down"], env=stack.environment, cwd=folder, check=False
            )
    numbers: dict[str, object] = {"jobs": chosen.jobs, "all": taken}
    for what in ("submitted", "complete"):
        medians = {which: statistics.median([t[what] for t in each]) for which, each in taken.items()}
        numbers[f"seconds a job until {what}"] = {which: round(x, 2) for which, x in medians.items()}
        numbers[f"ratio until {what}"] = round(medians["ours"] / medians["bare"], 2)
    keep("submission", numbers)


def variables(stack: served.Served) -> dict[str, str]:
    """What a client of the stack needs, as `atelier status --env` prints it for a shell."""
    said = stack.atelier("status", "--env")
    assert said.returncode == 0, said.stderr
    pairs = [word.partition("=") for word in shlex.split(said.stdout) if "=" in word]
    return {name: value for name, _, value in pairs}


def one(stack: served.Served, which: str, repeat: int, jobs: int, env: dict[str, str]) -> dict[str, float]:
    if which == "bare":
        return batch(stack, "bare-parent", [sys.executable, "submit.py", str(jobs)], env, jobs)
    words = ["noops", "-m", "hydra/launcher=prefect", f"hydra.launcher.width={jobs}", "tracker=none"]
    words += ["wide=1", "deep=1", f"salt=range({repeat * jobs},{(repeat + 1) * jobs})"]
    return batch(stack, "noops", [sys.executable, "-m", "atelier", *words], env, jobs)


if __name__ == "__main__":
    main()
