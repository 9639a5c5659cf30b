"""`atelier runs`: what ran, how it ended, what it made."""

import json
import sys
import time
from argparse import Namespace
from typing import TypedDict

from atelier.engine.config.error import printable
from atelier.flows.run.store_check import open_store
from atelier.flows.run.table import duration, print_table
from atelier.infra.store.run_manifest import RunManifest, is_alive, read_manifests

LAST = 20
SHOWN = 4


def run(options: Namespace) -> int:
    """Print the runs, the oldest first, and the damage of unreadable manifests; the exit code."""
    store = open_store()
    there, damaged = read_manifests(store)
    for damage in damaged.values():
        print(printable(f"{damage}; {damage.way_out}", 0), file=sys.stderr)
    found = [described(manifest) for manifest in there]
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


class RunRow(TypedDict):
    """A run as `atelier runs --json` prints it; names are those of its tasks."""

    id: str
    flow: str
    status: str
    started: float
    ended: float | None
    took_s: float | None
    made: list[str]
    reused: list[str]
    failed: list[str]
    sweep: str
    command: str
    links: dict[str, str]


def described(manifest: RunManifest) -> RunRow:
    """A manifest as `atelier runs` shows it. A run whose process is gone without an end has crashed."""
    states, status = manifest.states, manifest.status
    if status == "running" and is_alive(manifest) is False:
        status = "crashed"
    started, ended = manifest.started, manifest.ended
    return {
        "id": manifest.id,
        "flow": manifest.flow,
        "status": status,
        "started": started,
        "ended": ended,
        "took_s": round(ended - started, 1) if ended else None,
        "made": [name for name, state in states.items() if state == "done"],
        "reused": [name for name, state in states.items() if state == "reused"],
        "failed": [name for name, state in states.items() if state == "failed"],
        "sweep": manifest.sweep,
        "command": manifest.command,
        "links": manifest.links,
    }


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
