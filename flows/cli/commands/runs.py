"""`atelier runs`: what ran, how it ended, what it made."""

import json
import sys
import time
from argparse import Namespace

from atelier.engine.config.error import printable
from atelier.flows.run.store_check import open_store
from atelier.flows.run.table import duration, print_table
from atelier.infra.report.listing import RunRow, run_rows

LAST = 20
SHOWN = 4


def run(options: Namespace) -> int:
    """Print the runs, the oldest first, and the damage of unreadable manifests; the exit code."""
    store = open_store()
    found, damaged = run_rows(store)
    for damage in damaged:
        print(printable(f"{damage}; {damage.way_out}", 0), file=sys.stderr)
    found = found if options.all or options.json else found[-LAST:]
    if options.json:
        print(json.dumps(found, indent=1))
        return 0
    if not found:
        print(f"no run in {store.root} yet; `atelier titan experiment=tiny` is a first one")
        return 0
    print_table(
        ("when", "run", "flow", "status", "took", "made", "reused", "command"),
        [_cells(one) for one in found],
        right=("reused", "took"),
        flexible="made",
    )
    return 0


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
        one["command"],
    )
