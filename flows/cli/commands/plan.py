"""`atelier plan <flow> ...`: print the DAG without running it."""

import json
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

from atelier.engine.config.device import known
from atelier.engine.config.error import ConfigError
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.pool import Pool
from atelier.engine.io.machine import num_cores
from atelier.flows.cli.config_dirs import add_config_dirs, take_config_dirs
from atelier.flows.run.catalog import check_flow
from atelier.flows.run.compose import RunConfig, compose
from atelier.flows.run.measured import MeasuredRow, rows_of
from atelier.flows.run.overrides import resume_overrides
from atelier.flows.run.plan import Plan
from atelier.flows.run.plan_document import PlanRow, PlanTotals, seconds_left
from atelier.flows.run.planned import TaskLayouts, planned
from atelier.flows.run.reasons import text_of
from atelier.flows.run.site_rows import LinkRow
from atelier.flows.run.store_check import open_store
from atelier.flows.run.table import amount, duration, print_table
from atelier.infra.launch.found_gpus import with_gpus
from atelier.infra.launch.gpus import VISIBLE
from atelier.infra.launch.slots import GpuSlots
from atelier.infra.store.store import Store

MOST_REASONS = 4
MANY_DEVICES = 16
MOST_LAYOUTS, MOST_OUT = 12, 12


def run(options: Namespace) -> int:
    """Print the plan. Returns the exit code, 2 when the plan is refused. Raises ConfigError for an unknown
    flow and invalid overrides.
    """
    flow, store = options.flow, open_store()
    add_config_dirs(options.config_dir or [])
    overrides = [
        *take_config_dirs(options.overrides),
        *resume_overrides(options.accept_code, options.fresh or []),
    ]
    if options.calibrate:
        check_flow(flow, "atelier plan")
        _calibrate(compose(flow, overrides), store)
    found = planned(flow, overrides, store, search=options.search)
    if options.json:
        print(json.dumps(found.document(), indent=1))
    else:
        if found.source is not None:
            rows = [(row["what"], row["state"], row["why"]) for row in found.source]
            print_table(("of the source", "", "what, or why"), rows, flexible="what, or why")
            print()
        if found.plan.nodes or found.source is None:
            _show(found.plan, found.totals)
        _show_measured(found.measured)
        for task in found.search or ():
            _show_layouts(task)
    for refusal in found.refused:
        print(f"plan: {refusal}", file=sys.stderr)
    return 2 if found.refused else 0


def _calibrate(frozen: RunConfig, store: Store) -> None:
    """Measure this machine for the run's pool, in a temporary folder."""
    pool = with_gpus(store.root, frozen.pool)
    if pool.paper or pool.launcher != "here":
        raise ConfigError(
            "--calibrate",
            f"measures this machine, but the pool's devices are {pool.gpu} elsewhere",
            "pool=here; plans for others are corrected by the trainings that ran there",
        )
    if not pool.is_cpu and known(pool.gpu) is None:
        way_out = "give its peak_tflops and other facts in a file of conf/pool"
        raise ConfigError("--calibrate", f"knows no figures of a {pool.gpu}", way_out)
    from atelier.infra.calibration.calibrate import calibrate  # numpy: plans do without

    with tempfile.TemporaryDirectory(prefix="atelier-") as scratch, _devices(pool) as env:
        pool = calibrate(store.root, pool, num_cores(), Path(scratch), say, env)
    if not pool.is_cpu:
        say(
            f"a GPU: {pool.device.matmul:.0%} of {float(pool.device.peak_tflops):.0f} TFLOP/s in products, "
            f"{float(pool.device.memory_gbps):.0f} GB/s, {pool.device.launch_us:.1f} us a kernel"
        )
        return
    say(
        f"a core: {float(pool.device.peak_tflops):.3f} TFLOP/s, {float(pool.device.memory_gbps):.1f} GB/s, "
        f"{pool.device.launch_us:.0f} us a kernel, {pool.device.crowded:.0%} of its speed beside others; "
        f"between processes {pool.device.node_gbps:.2f} GB/s after {pool.device.latency_us:.0f} us"
    )


@contextmanager
def _devices(pool: Pool) -> Iterator[dict[str, str]]:
    """The environment of processes that compute on at most two of the pool's GPUs, held meanwhile."""
    if pool.is_cpu:
        yield {}
        return
    gpus, count = GpuSlots(pool), min(2, max(1, pool.gpus))
    gpus.check(count, "--calibrate")
    with gpus.claim(count, Event(), lambda what, pids: say(f"waits for {what}")) as claim:
        yield {VISIBLE: gpus.devices(claim)}


def say(text: str) -> None:
    print(text, file=sys.stderr)


def _show(plan: Plan, totals: PlanTotals) -> None:
    columns = ("task", "state", "why", "from step", "params", "computed", "memory", "step", "time")
    right = ("from step", "params", "memory", "step", "time")
    rows = [_cells(row) for row in plan.rows]
    if len(plan.pools) > 1:
        columns = (columns[0], "pool", *columns[1:])
        rows = [(cells[0], row["pool"], *cells[1:]) for row, cells in zip(plan.rows, rows, strict=True)]
    if plan.there:
        columns = ("site", *columns)
        rows = [(row["site"] or plan.here.site, *cells) for row, cells in zip(plan.rows, rows, strict=True)]
    print_table(columns, rows, right=right, flexible="why")
    _show_sites(plan)
    _show_pools(plan)
    print()
    hours = totals["device_hours"] * 3600
    cost = f", about {duration(hours)} of device time, {amount(totals['flops'])}FLOP" if hours else ""
    where = f"at {plan.here.site}: " if plan.sites else ""
    print(
        f"{where}{totals['tasks']} tasks, {totals['artifacts']} artifacts: "
        f"{totals['reuse']} to reuse, {totals['run']} to make{cost}"
    )
    if plan.wall_s:
        print(f"wall-clock time about {duration(plan.wall_s)}, starts included, if nothing else runs")
    for note in (*plan.notes, *_goodput(plan)):
        print(f"note: {note}")


def _show_sites(plan: Plan) -> None:
    """Print a row for each site, and for each link the traffic with each possible codec."""
    if plan.sites:
        columns = ("site", "tasks", "artifacts", "to reuse", "to make", "device time")
        rows = [
            (
                one["site"],
                *(str(one[key]) for key in ("tasks", "artifacts", "reuse", "run")),
                duration(one["device_hours"] * 3600),
            )
            for one in plan.sites
        ]
        print()
        print_table(columns, rows, right=columns[1:])
    if plan.links:
        columns = ("link", "of", "codec", "messages", "each", "of a part", "in all", "needs", "carries")
        columns = (*columns, "seconds", "stall", "staleness")
        print()
        print_table(columns, [cells for row in plan.links for cells in _link_cells(row)], right=columns[3:])


def _show_pools(plan: Plan) -> None:
    """Print a row for each pool, if there are several."""
    if len(plan.pools) < 2:
        return
    columns = ("pool", "device", "tasks", "to reuse", "to make", "memory", "device time")
    rows = [
        (
            one["pool"],
            one["device"],
            *(str(one[key]) for key in ("tasks", "reuse", "run")),
            f"{one['memory_gb']:.2f} GB" if one["memory_gb"] else "",
            duration(one["device_hours"] * 3600) if one["device_hours"] else "",
        )
        for one in plan.pools
    ]
    print()
    print_table(columns, rows, right=columns[2:])


def _link_cells(row: LinkRow) -> Iterator[tuple[str, ...]]:
    """A row for each cost of a link; unknown cells are blank."""
    is_of_all = row["kind"] == "contributions"
    arrow = ", " if is_of_all else " -> "
    steps = f"{row['staleness']} steps"
    for cost in row["costs"]:
        is_chosen = cost["codec"] == row["chosen"]
        yield (
            arrow.join(row["sites"]),
            f"{row['task']}.{row['role']}, {row['kind']}",
            cost["codec"] + (" (taken)" if is_chosen else ""),
            str(row["messages"]),
            f"{amount(cost['bytes'])}B",
            f"{amount(max(cost['fragments']))}B" if cost["fragments"] else "",
            f"{amount(cost['sent'])}B",
            f"{amount(cost['needs_mbps'] * 1e6)}bit/s" if cost["needs_mbps"] else "",
            f"{amount(min(row['mbps'].values()) * 1e6)}bit/s" if row["mbps"] else "",
            "" if cost["seconds"] is None else duration(cost["seconds"]),
            "" if cost["stall"] is None else f"{100 * cost['stall']:.2g} %",
            steps if is_of_all else f"up to {steps}",
        )


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
    """For each training on many devices: the share of time left for training when devices fail, for its
    slowest role.
    """
    found = []
    for node in plan.nodes:
        rows = [row for row in rows_of(plan, node) if row["state"] == "run" and row["params"]]
        if node.task != "train" or not rows or Parallel.model_validate(node.layout).ranks < MANY_DEVICES:
            continue
        slowest = max(rows, key=lambda row: row["step_s"])
        ranks = Parallel.model_validate(node.layout).ranks
        found.append(
            f"{node.name}: {100 * slowest['effective_time']:.1f} % of the time is training if its {ranks}"
            f" devices fail at the pool's rate (mtbf_hours); the best interval of checkpoints is"
            f" {slowest['best_checkpoint_every']} steps"
        )
    return found


def _cells(row: PlanRow) -> tuple[str, ...]:
    is_costed = row["params"] > 0
    left = seconds_left(row) if is_costed else 0.0
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
