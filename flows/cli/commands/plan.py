"""`atelier plan <flow> ...`: the DAG before it runs."""

import json
import sys
from argparse import Namespace
from typing import Any

from engine.spec.base import nearest
from engine.spec.error import ConfigError
from engine.spec.parallel import Parallel
from flows.cli.catalog import flow_names
from flows.cli.compose import compose
from flows.cli.plan import Plan, draw, text_of
from flows.cli.root import open_store
from flows.cli.table import amount, duration, print_table

MOST_REASONS = 4


def run(options: Namespace) -> int:
    flow = options.flow
    if flow not in flow_names():
        near = nearest(flow, flow_names())
        way_out = (f"did you mean {near}? " if near else "") + f"there are: {', '.join(flow_names())}"
        raise ConfigError("atelier plan", f"no flow {flow!r}", way_out)
    store = open_store()
    plan = draw(compose(flow, options.overrides), store)
    document = plan.document()
    if options.json:
        print(json.dumps(document, indent=1))
    else:
        _show(plan, document["totals"])
    for refusal in plan.refusals:
        print(f"plan: {refusal}", file=sys.stderr)
    return 2 if plan.refusals else 0


def _show(plan: Plan, totals: dict[str, Any]) -> None:
    columns = ("task", "state", "why", "from step", "params", "memory", "step", "time")
    right = ("from step", "params", "memory", "step", "time")
    print_table(columns, [_cells(row) for row in plan.rows], right=right, flexible="why")
    print()
    hours = totals["device_hours"] * 3600
    cost = f", about {duration(hours)} of device time, {amount(totals['flops'])}FLOP" if hours else ""
    print(
        f"{totals['tasks']} tasks, {totals['artifacts']} artifacts: "
        f"{totals['reuse']} to reuse, {totals['run']} to make{cost}"
    )
    for note in plan.notes:
        print(f"note: {note}")


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    is_costed = row["params"] > 0
    ranks = Parallel.model_validate(row["layout"]).ranks if is_costed else 1
    left = row["device_hours"] * 3600 / max(1, ranks)
    return (
        row["name"],
        row["state"],
        _why(row),
        str(row["from_step"] or ""),
        amount(row["params"]) if is_costed else "",
        f"{row['memory_gb']:.2f} GB" if is_costed else "",
        duration(row["step_s"]) if is_costed else "",
        duration(left) if is_costed and row["state"] != "reuse" else "",
    )


def _why(row: dict[str, Any]) -> str:
    words = [text_of(reason) for reason in row["reasons"]]
    more = f" and {len(words) - MOST_REASONS} more" if len(words) > MOST_REASONS else ""
    return "; ".join(words[:MOST_REASONS]) + more
