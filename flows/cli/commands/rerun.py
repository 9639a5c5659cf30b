"""`atelier rerun <run> ...`: run a past run again with changes, or compute it again and compare."""

import json
import shlex
import sys
import threading
from argparse import Namespace

from rich.console import Console

from atelier.engine.config.error import ConfigError, printable
from atelier.flows.cli.flow_command import run_point
from atelier.flows.run.execute import stopping
from atelier.flows.run.overrides import resume_overrides
from atelier.flows.run.plan import Plan, make_plan
from atelier.flows.run.pools import check_launcher
from atelier.flows.run.reasons import text_of
from atelier.flows.run.rerun import FROM, PLACE, Rerun, rerun
from atelier.flows.run.screen import Screen
from atelier.flows.run.store_check import check_root
from atelier.flows.run.table import print_table
from atelier.flows.run.verify import DIFFERS, EQUAL, FAILED, VerifiedRow, verify
from atelier.infra.store.existing_model import looking_in
from atelier.infra.store.store import Store, default_root

MOST_REASONS = 3
SHOWN = 16  # digits of a digest


def run(options: Namespace) -> int:
    """Run, plan or verify. Returns the exit code: of --verify 1 if something differs or cannot be computed.
    Raises ConfigError as flows.run.rerun.rerun does, and for options that exclude each other.
    """
    words = [*options.overrides, *resume_overrides(options.accept_code, options.fresh or [])]
    if options.verify and (words or options.dry_run):
        given = " ".join([*words, *(["--dry-run"] if options.dry_run else [])])
        problem = f"compares what the run made, and {given} would make another thing"
        raise ConfigError(f"{PLACE} --verify", problem, "leave one out")
    if options.json and not (options.verify or options.dry_run):
        raise ConfigError(f"{PLACE} --json", "a run prints its progress", "add --dry-run or --verify")
    check_root(will_write=not options.dry_run)
    store, first = Store(default_root()), getattr(options, "from")
    found = rerun(store, options.run, words, first or "")
    for note in found.notes:
        print(printable(f"note: {note}", 0), file=sys.stderr)
    if options.verify:
        return _verify(found, first or "", store, is_json=options.json)
    if options.dry_run:
        plan = make_plan(found.frozen, store)
        _show_plan(found, plan, is_json=options.json)
        plan.check()
        return 0
    changed = ", ".join(found.changed) or "nothing"
    print(printable(f"again    run {found.past.id}; changed: {changed}", 0), flush=True)
    return run_point(found.frozen, _command(found))


def _command(found: Rerun) -> str:
    """The command that runs the same without naming the past run."""
    return shlex.join(["atelier", found.frozen.flow, *found.frozen.overrides])


def _show_plan(found: Rerun, plan: Plan, *, is_json: bool) -> None:
    if is_json:
        about = {"rerun_of": found.past.id, "command": _command(found), "changed": found.changed}
        print(json.dumps({**about, "notes": found.notes, "plan": plan.document()}, indent=1))
        return
    print(printable(f"again    run {found.past.id}: {_command(found)}", 0))
    cells = [
        (
            row["name"],
            row["state"],
            row["fingerprint"][:8],
            "; ".join(map(text_of, row["reasons"][:MOST_REASONS])),
        )
        for row in plan.rows
    ]
    print_table(("task", "state", "fingerprint", "why"), cells, flexible="why")


def _verify(found: Rerun, name: str, store: Store, *, is_json: bool) -> int:
    """Compare the named task, or all of the run. Returns the exit code."""
    if found.changed and not name:
        problem = f"the flow makes other things now than run {found.past.id} did: {', '.join(found.changed)}"
        raise ConfigError(f"{PLACE} --verify", problem, f"{FROM} names one task that is the same")
    if name in found.changed:
        problem = f"it makes another thing now than in run {found.past.id}"
        raise ConfigError(f"{FROM} {name}", problem, "`atelier plan` shows what has changed")
    if found.frozen.sites.names:
        problem = "a run over several sites cannot be computed again at one"
        raise ConfigError(f"{PLACE} --verify", problem, "verify a run at one site")
    found.frozen.check_runs()
    for pool in found.frozen.pools:
        check_launcher(pool, store.root)
    looking_in(store)
    nodes = [node for node in found.nodes if name in ("", node.name)]
    rows, stop = list[VerifiedRow](), threading.Event()
    with stopping(stop), Screen(Console(file=sys.stderr, highlight=False)) as screen:
        for row in verify(found.frozen, found.past, nodes, store, screen.on_message, stop):
            rows.append(row)
            if not is_json:
                _show_row(row)
    if is_json:
        print(json.dumps({"run": found.past.id, "artifacts": rows}, indent=1))
    else:
        counts = [f"{sum(row['state'] == state for row in rows)} {state}" for state in (EQUAL, DIFFERS)]
        print(f"{', '.join(counts)}, {len(rows)} in all")
    is_bad = any(row["state"] in (DIFFERS, FAILED) for row in rows)
    return int(is_bad or all(row["state"] != EQUAL for row in rows))


def _show_row(row: VerifiedRow) -> None:
    digest = f" (sha256 {row['sha256'][:SHOWN]})" if row["sha256"] else ""
    print(printable(f"{row['state']:<8} {row['name']} {row['fingerprint'][:8]}{digest}", 0), flush=True)
    for text in (line for one in (*row["differs"], *row["notes"]) for line in one.splitlines()):
        print(printable(f"{'':<8} {text}", 0), flush=True)
    if row["kept"]:
        print(printable(f"{'':<8} kept in {row['kept']}", 0), flush=True)
