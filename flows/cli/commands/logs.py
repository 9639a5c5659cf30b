"""`atelier logs <run> [task]`: print what the tasks of a run said, or follow it until the run ends."""

import json
import sys
import time
from argparse import Namespace
from collections.abc import Callable

from atelier.engine.config.error import ConfigError, printable
from atelier.flows.run.log_reader import LogReader, clock_text, rank_of
from atelier.flows.run.named_run import run_called, runs_called, status_of, task_called, tasks_of
from atelier.flows.run.queued_runs import queued_run
from atelier.flows.run.store_check import open_store
from atelier.infra.run.run_log import LogLine
from atelier.infra.store.lease import Holder
from atelier.infra.store.run_manifest import RunManifest, manifests, read_manifest
from atelier.infra.store.store import Store

LOOK_S = 0.5
MARKS = {"warning": "warning: ", "error": "error: "}


def run(options: Namespace) -> int:
    """Print the lines; with -f until the run has ended. Returns the exit code. Raises ConfigError for words
    that mean no run or no task of it, and for a run without a log here.
    """
    store = open_store()
    show = _as_json if options.json else _as_text
    is_followed = options.f or options.follow
    try:
        found = _run_and_task(store, options.what, options.task)
        if found is None:
            return _queued(store, options, show) if is_followed else 0
        manifest, task = found
        reader = LogReader(store, manifest.id, task)
        reader = LogReader(store, manifest.id, task, rank_of(options.rank, reader))
        if is_followed:
            return _follow(store, manifest, reader, show)
        _check_there(manifest, reader)
        for line in reader.read():
            show(line)
    except KeyboardInterrupt:
        return 0  # Ctrl-C is how one stops reading
    return 0


def _run_and_task(store: Store, what: str, task: str | None) -> tuple[RunManifest, str] | None:
    """The run and the task ('' = all) that the words mean; None, after a line about it, for a run in a queue.
    A bare task is that of the newest run that has it.
    """
    name, slash, rest = what.partition("/")
    runs = manifests(store)
    if slash and not task and runs_called(runs, name):
        what, task = name, rest
    if not runs_called(runs, what):
        with_it = [one for one in runs if what in tasks_of(one)]
        if with_it and not task:
            print(printable(f"task {what} of the run {with_it[-1].id}", 0), file=sys.stderr)
            return with_it[-1], what
        if (waiting := queued_run(store.root, what)) is not None:
            print(printable(f"run {waiting.id} has not begun: {waiting.why}", 0), file=sys.stderr)
            return None
    found = run_called(store, what, "logs")
    return found, task_called(found, task, "logs") if task else ""


def _queued(store: Store, options: Namespace, show: Callable[[LogLine], None]) -> int:
    """Wait until the run begins, then follow it."""
    while (waiting := queued_run(store.root, options.what)) is not None:
        time.sleep(LOOK_S)
        if runs_called(manifests(store), waiting.id):
            found = run_called(store, waiting.id, "logs")
            task = task_called(found, options.task, "logs") if options.task else ""
            return _follow(store, found, LogReader(store, found.id, task), show)
    print(printable(f"run {options.what} ended before it began", 0), file=sys.stderr)
    return 0


def _follow(store: Store, manifest: RunManifest, reader: LogReader, show: Callable[[LogLine], None]) -> int:
    """Print lines as they are written, until the run has ended."""
    is_told = False
    while True:
        status = status_of(manifest)  # before the last look: nothing is written after the end
        if status != "running":
            _check_there(manifest, reader)
        elif not is_told and not reader.has_files:
            is_told = True
            print(printable(_why_nothing(manifest), 0), file=sys.stderr)
        for line in reader.read():
            show(line)
        if status != "running":
            print(printable(f"run {manifest.id} {status}", 0), file=sys.stderr)
            return 0
        time.sleep(LOOK_S)
        manifest = read_manifest(store, manifest.id)


def _why_nothing(manifest: RunManifest) -> str:
    """Why a run in progress has no log here yet."""
    holder = Holder.read(manifest.holder) if manifest.holder else None
    if holder is not None and not holder.is_here():
        return f"run {manifest.id} runs on {holder.host}; a log is in that machine's scratch folder"
    return f"run {manifest.id} has written no line yet"


def _check_there(manifest: RunManifest, reader: LogReader) -> None:
    """Raises ConfigError if there are no files."""
    if reader.has_files:
        return
    states = manifest.states
    if states and all(state == "reused" for state in states.values()):
        why, way_out = "all its tasks were reused, so that none ran", "`atelier runs <id>` shows it"
    elif manifest.status == "running":
        why, way_out = _why_nothing(manifest), "-f waits for the first one"
    elif holder := Holder.read(manifest.holder) if manifest.holder else None:
        why = "its files are gone"
        way_out = f"it ran on {holder.host}; there --rank 0 finds logs of older versions, gc removes them"
    else:
        why, way_out = "its files are gone", "`atelier gc` removes those of runs that have ended"
    raise ConfigError("logs", f"run {manifest.id} has no log here: {why}", way_out)


def _as_text(line: LogLine) -> None:
    rank = f" rank {line['rank']}" if "rank" in line else ""
    text = f"{clock_text(line['time'])} {line['task']}{rank}: {MARKS.get(line['level'], '')}{line['text']}"
    print(printable(text, 0), flush=True)


def _as_json(line: LogLine) -> None:
    print(json.dumps(line, ensure_ascii=False), flush=True)
