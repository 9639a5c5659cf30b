"""`atelier runs`: list runs, with their end and the artifacts they made."""

import json
import sys
import time
from argparse import Namespace

from atelier.engine.config.error import printable
from atelier.flows.run.named_run import run_called
from atelier.flows.run.store_check import open_store
from atelier.flows.run.table import duration, print_table
from atelier.infra.report.listing import RunRow, run_row, run_rows
from atelier.infra.report.run_detail import ScoredModel, run_detail
from atelier.infra.store.store import Store

LAST = 20
SHOWN = 4


def run(options: Namespace) -> int:
    """Print the runs, the oldest first, and damaged manifests. Returns the exit code."""
    store = open_store()
    found, damaged = run_rows(store)
    for damage in damaged:
        print(printable(f"{damage}; {damage.way_out}", 0), file=sys.stderr)
    if options.id:
        return _show_one(store, options.id, is_json=options.json)
    found = found if options.all or options.json else found[-LAST:]
    if options.json:
        print(json.dumps(found, indent=1))
        return 0
    if not found:
        print(f"no run in {store.root} yet; `atelier titan experiment=tiny` is a first one")
        return 0
    columns = ("when", "run", "flow", "status", "took", "made", "reused", "again", "command")
    has_again = any(one["rerun_of"] for one in found)
    kept = [number for number, name in enumerate(columns) if has_again or name != "again"]
    print_table(
        tuple(columns[number] for number in kept),
        [tuple(_cells(one)[number] for number in kept) for one in found],
        right=("reused", "took"),
        flexible="made",
    )
    return 0


def _show_one(store: Store, given: str, *, is_json: bool) -> int:
    """Print one run. Raises ConfigError if not exactly one run has this id or name."""
    manifest = run_called(store, given, "runs")
    row, detail = run_row(manifest), run_detail(store, manifest)
    if is_json:
        print(json.dumps({**row, **detail}, indent=1))
        return 0
    print(printable(f"{row['id']}  {row['status']}", 0))
    print(printable(row["command"], 0))
    if row["rerun_of"]:
        print(printable(f"again    run {row['rerun_of']}", 0))
    if detail["models"]:
        scores = ("bits/byte", "loss (documents)", "loss vs control", "accuracy")
        rows = [_scored(one) for one in detail["models"]]
        print_table(("model", "fingerprint", "kind", *scores), rows, right=scores)
    ended = ", ".join(f"{name} {state}" for name, state in detail["tasks"].items())
    print(printable(f"tasks    {ended}", 0))
    if detail["report"]:
        print(printable(f"report   {detail['report']}", 0))
    for name, url in detail["links"].items():
        print(printable(f"{name:<16} {url}", 0))
    return 0


def _scored(one: ScoredModel) -> tuple[str, ...]:
    numbers = (one["bits_per_byte"], one["loss"], one["loss_vs_control"], one["accuracy"])
    texts = ["" if value is None else f"{value:.3f}" for value in numbers]
    if one["loss_vs_control"] is not None:
        texts[2] = f"{one['loss_vs_control']:+.3f}"
    return (one["name"], one["fingerprint"][:8], one["kind"], *texts)


def _cells(one: RunRow) -> tuple[str, ...]:
    made = one["made"]
    words = ", ".join(made[:SHOWN]) + (f" and {len(made) - SHOWN} more" if len(made) > SHOWN else "")
    if one["failed"]:
        words = f"{words + '; ' if words else ''}failed: {', '.join(one['failed'])}"
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(one["started"]))
    took = duration(one["took_s"]) if one["took_s"] is not None else ""
    return (
        when,
        one["id"],
        one["flow"],
        one["status"],
        took,
        words or "-",
        str(len(one["reused"])),
        one["rerun_of"],
        one["command"],
    )
