"""Cost of Atelier per embedded task: a DAG of no-ops through Atelier (fingerprint, lease, publish, record,
state) beside bare Prefect.

python benchmarks/overhead.py [--tasks 20] [--repeats 5]      goal: at most 150 ms a task above bare Prefect
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
import types
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "src"), str(Path(__file__).parent)]

from machine import keep

from atelier.engine.io.artifact import ArtifactOutput
from atelier.flows.run.embedded_server import embed
from atelier.flows.run.outcome import PrefectScheduler
from atelier.flows.run.work import work
from atelier.infra.dag import Node, Product, Reference, declare, scheduling, stop_scheduling
from atelier.infra.launch.slots import Slots
from atelier.infra.run.context import RunContext
from atelier.infra.run.run_tracker import RunTracker
from atelier.infra.store.store import Store


def noop_task() -> types.ModuleType:
    """A task that makes one small artifact in this process."""
    module = types.ModuleType("atelier.tasks.noop")

    def run(node: Node, context: RunContext) -> None:
        def build(payload: str) -> None:
            output = ArtifactOutput(payload)
            output.add_bytes("nothing", b"")
            output.close({})

        context.here(node, "out", build)

    module.run = run  # type: ignore[attr-defined]
    return module


def ours(prefect: Any, context: RunContext, count: int, salt: float) -> float:
    states: dict[str, str] = {}
    errors: dict[str, Exception] = {}

    @prefect.task(persist_result=False)
    def node_task(node: dict[str, Any], after: list[Any]) -> dict[str, Any]:
        return work(Node.model_validate(node), context, states, errors)

    @prefect.flow
    def dag() -> None:
        def submit(node: Node, waits: list[Any]) -> Any:
            return node_task.with_options(task_run_name=node.name).submit(node.model_dump(mode="json"), waits)

        scheduler = PrefectScheduler(submit)
        token = scheduling(scheduler)
        before: list[Reference] = []
        for i in range(count):
            parents = {"before": before[-1].fingerprint} if before else {}
            product = Product(
                kind="report", name=f"n{i}", version=1, identity={"i": i, "salt": salt}, parents=parents
            )
            before.append(
                declare(Node(name=f"n{i}", task="noop", products={"out": product}), before[-1:])["out"]
            )
        stop_scheduling(token)
        for future in scheduler.futures:
            future.wait()
        assert not errors, errors

    started = time.perf_counter()
    dag()
    return time.perf_counter() - started


def bare(prefect: Any, count: int) -> float:
    @prefect.task(persist_result=False)
    def node_task(i: int, after: list[Any]) -> int:
        return i

    @prefect.flow
    def dag() -> None:
        futures: list[Any] = []
        for i in range(count):
            futures.append(node_task.with_options(task_run_name=f"n{i}").submit(i, futures[-1:]))
        for future in futures:
            future.wait()

    started = time.perf_counter()
    dag()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        os.environ["PREFECT_HOME"] = f"{root}/prefect"
        embed(root)
        import prefect

        sys.modules["atelier.tasks.noop"] = noop_task()
        context = RunContext(
            store=Store(root),
            slots=Slots(2, Path(root) / "slots"),
            scratch=Path(root) / "scratch",
            run_id="bench",
            flow="bench",
            command="bench",
            listener=lambda node, message: None,
            tracker=RunTracker(),
        )
        bare(prefect, 2)  # starts the embedded server
        times: dict[str, list[float]] = {"ours": [], "bare": []}
        for i in range(chosen.repeats):
            for which in ("ours", "bare") if i % 2 else ("bare", "ours"):
                took = (
                    ours(prefect, context, chosen.tasks, i)
                    if which == "ours"
                    else bare(prefect, chosen.tasks)
                )
                times[which].append(took / chosen.tasks * 1000)
        medians = {which: round(statistics.median(found), 1) for which, found in times.items()}
        above = round(medians["ours"] - medians["bare"], 1)
        keep(
            "overhead",
            {"tasks": chosen.tasks, "ms_per_task": medians, "ms_above_bare_prefect": above, "goal_ms": 150},
        )


if __name__ == "__main__":
    main()
