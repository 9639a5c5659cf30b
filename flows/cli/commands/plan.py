"""`atelier plan <flow> ...`: print the DAG without running it."""

import json
import sys
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import TypedDict

from atelier.engine.config.error import ConfigError, nearest
from atelier.engine.config.parallel import Parallel
from atelier.engine.plan.estimate import EstimateRow
from atelier.flows.run.auto import vocab_of
from atelier.flows.run.catalog import flow_names
from atelier.flows.run.compose import Frozen, compose
from atelier.flows.run.measured import MeasuredRow, measured, rows_of
from atelier.flows.run.memory_fit import TRAINED, layouts, words
from atelier.flows.run.overrides import resume_overrides
from atelier.flows.run.plan import Plan, PlanRow, PlanTotals, make_plan, text_of
from atelier.flows.run.store_check import open_store
from atelier.flows.run.table import amount, duration, print_table
from atelier.infra.launch.machine import num_cores
from atelier.infra.store.store import Store

MOST_REASONS = 4
MANY_DEVICES = 16
MOST_LAYOUTS, MOST_OUT = 12, 12


def run(options: Namespace) -> int:
    """Print the plan; the exit code is 2 when it is refused. Raises ConfigError for an unknown flow and
    invalid overrides.
    """
    flow = options.flow
    if flow not in flow_names():
        near = nearest(flow, flow_names())
        way_out = (f"did you mean {near}? " if near else "") + f"there are: {', '.join(flow_names())}"
        raise ConfigError("atelier plan", f"no flow {flow!r}", way_out)
    store = open_store()
    overrides = [*options.overrides, *resume_overrides(options.accept_code, options.fresh or [])]
    if options.calibrate:
        _calibrate(compose(flow, overrides), store)
    frozen = compose(flow, overrides)
    plan = make_plan(frozen, store)
    document = plan.document()
    found = _layouts(plan, frozen) if options.search else []
    seen = measured(plan, store)
    if options.json:
        more = {"measured": seen} | ({"search": found} if options.search else {})
        print(json.dumps({**document, **more}, indent=1))
    else:
        _show(plan, document["totals"])
        _show_measured(seen)
        for task in found:
            _show_layouts(task)
    for refusal in plan.refusals:
        print(f"plan: {refusal}", file=sys.stderr)
    return 2 if plan.refusals else 0


def _calibrate(frozen: Frozen, store: Store) -> None:
    """Measure this machine for the run's pool, in a temporary folder."""
    if not frozen.pool.is_cpu or frozen.pool.paper:
        raise ConfigError(
            "--calibrate",
            f"measures the CPUs of this machine, and the pool's devices are {frozen.pool.gpu}",
            "plans are corrected by the trainings that ran there",
        )
    from atelier.infra.calibration.calibrate import calibrate  # numpy: plans do without

    with tempfile.TemporaryDirectory(prefix="atelier-") as scratch:
        pool = calibrate(store.root, frozen.pool, num_cores(), Path(scratch), say)
    say(
        f"a core: {float(pool.device.peak_tflops):.3f} TFLOP/s, {float(pool.device.memory_gbps):.1f} GB/s, "
        f"{pool.device.launch_us:.0f} us a kernel, {pool.device.crowded:.0%} of its speed beside others; "
        f"between processes {pool.device.node_gbps:.2f} GB/s after {pool.device.latency_us:.0f} us"
    )


def say(text: str) -> None:
    print(text, file=sys.stderr)


def _show(plan: Plan, totals: PlanTotals) -> None:
    columns = ("task", "state", "why", "from step", "params", "computed", "memory", "step", "time")
    right = ("from step", "params", "memory", "step", "time")
    print_table(columns, [_cells(row) for row in plan.rows], right=right, flexible="why")
    print()
    hours = totals["device_hours"] * 3600
    cost = f", about {duration(hours)} of device time, {amount(totals['flops'])}FLOP" if hours else ""
    print(
        f"{totals['tasks']} tasks, {totals['artifacts']} artifacts: "
        f"{totals['reuse']} to reuse, {totals['run']} to make{cost}"
    )
    if plan.wall_s:
        print(f"by the clock about {duration(plan.wall_s)}, starts included, if nothing else runs")
    for note in (*plan.notes, *_goodput(plan)):
        print(f"note: {note}")


def _show_measured(seen: list[MeasuredRow]) -> None:
    """Print planned and measured cost of finished trainings."""
    if not seen:
        return
    columns = ("finished", "step planned", "measured", "memory planned", "measured", "effective time")
    rows = [
        (
            one["task"],
            duration(one["planned_step_s"]),
            duration(one["step_s"]),
            f"{one['planned_memory_gb']:.2f} GB",
            f"{one['memory_gb']:.2f} GB",
            f"{100 * one['effective_time']:.0f} %",
        )
        for one in seen
    ]
    print()
    print_table(columns, rows, right=columns[1:])


def _goodput(plan: Plan) -> list[str]:
    """For each training on many devices the share of time that is training when devices fail, for its slowest
    role.
    """
    found = []
    for node in plan.nodes:
        rows = [row for row in rows_of(plan, node) if row["state"] == "run" and row["params"]]
        if node.task != "train" or not rows or Parallel.model_validate(node.layout).ranks < MANY_DEVICES:
            continue
        slowest = max(rows, key=lambda row: row["step_s"])
        ranks = Parallel.model_validate(node.layout).ranks
        found.append(
            f"{node.name}: {100 * slowest['effective_time']:.1f} % of the time is training when its {ranks}"
            f" devices fail at the pool's rate (mtbf_hours); best is a checkpoint every"
            f" {slowest['best_checkpoint_every']} steps"
        )
    return found


def _cells(row: PlanRow) -> tuple[str, ...]:
    is_costed = row["params"] > 0
    ranks = Parallel.model_validate(row["layout"]).ranks if is_costed else 1
    left = row["device_hours"] * 3600 / max(1, ranks)
    return (
        row["name"],
        row["state"],
        _why(row),
        str(row["from_step"] or ""),
        amount(row["params"]) if is_costed else "",
        row["computed"],
        f"{row['memory_gb']:.2f} GB" if is_costed else "",
        duration(row["step_s"]) if is_costed else "",
        duration(left) if is_costed and row["state"] != "reuse" else "",
    )


def _why(row: PlanRow) -> str:
    words = [text_of(reason) for reason in row["reasons"]]
    more = f" and {len(words) - MOST_REASONS} more" if len(words) > MOST_REASONS else ""
    return "; ".join(words[:MOST_REASONS]) + more


class LayoutRow(EstimateRow):
    """A layout of the search and its cost."""

    words: str
    mesh: str
    micro_batch: int
    parts: dict[str, dict[str, float]]


class OutRow(TypedDict):
    """A mesh that is impossible, and why."""

    mesh: str
    why: str


class TaskLayouts(TypedDict):
    """What `atelier plan --search` finds for one training."""

    task: str
    layouts: list[LayoutRow]
    out: list[OutRow]


def _layouts(plan: Plan, frozen: Frozen) -> list[TaskLayouts]:
    """For each training the layouts of its largest role, the fastest first, and why the others are out."""
    vocab = vocab_of(frozen.arguments)
    found: list[TaskLayouts] = []
    for node in plan.nodes:
        if node.task not in TRAINED or not vocab:
            continue
        options, out = layouts(node, frozen.pool, vocab)
        rows: list[LayoutRow] = [
            {
                "words": words(one),
                "mesh": one.mesh,
                "micro_batch": one.micro_batch,
                **one.estimate.row(),
                "parts": one.estimate.parts(),
            }
            for one in options
        ]
        reasons: list[OutRow] = [{"mesh": one.mesh, "why": one.why} for one in out]
        found.append({"task": node.name, "layouts": rows, "out": reasons})
    return found


def _show_layouts(task: TaskLayouts) -> None:
    print()
    if not task["layouts"]:
        print(f"{task['task']}: no layout fits")
    columns = ("", f"layouts of {task['task']}", "step", "tokens/s", "MFU", "memory")
    rows = [
        (
            str(place),
            one["words"],
            duration(one["step_s"]),
            amount(one["tokens_per_s"]),
            f"{100 * one['mfu']:.0f} %",
            f"{one['memory_gb']:.1f} GB",
        )
        for place, one in enumerate(task["layouts"][:MOST_LAYOUTS], start=1)
    ]
    if rows:
        print_table(columns, rows, right=("", "step", "tokens/s", "MFU", "memory"), flexible=columns[1])
    more = len(task["layouts"]) - len(rows)
    if more > 0:
        print(f"and {more} slower ones: --json lists them")
    if task["out"]:
        shown = [(one["mesh"], one["why"]) for one in task["out"][:MOST_OUT]]
        print()
        print_table(("out", "why"), shown, flexible="why")
        if len(task["out"]) > MOST_OUT:
            print(f"and {len(task['out']) - MOST_OUT} more: --json lists them")
