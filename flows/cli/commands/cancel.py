"""`atelier cancel <run>`: stop a run at a checkpoint, wait for its end, and say how to continue it."""

import json
import sys
import time
from argparse import Namespace
from typing import TypedDict

from atelier.engine.config.error import printable
from atelier.flows.run.cancel_request import request_cancel, withdraw
from atelier.flows.run.log_reader import LogReader
from atelier.flows.run.named_run import run_called, runs_called, status_of
from atelier.flows.run.queued_runs import QueuedRun, queued_run
from atelier.flows.run.store_check import check_root, open_store
from atelier.infra.run.run_log import LogLine
from atelier.infra.store.lease import Holder
from atelier.infra.store.run_manifest import RunManifest, manifests, read_manifest
from atelier.infra.store.store import Store
from atelier.infra.store.trajectory import checkpoint_steps

LOOK_S = 0.2
TELL_S = 10.0  # between two lines about what is waited for
ENDED = ("finished", "stopped", "failed", "crashed")


class Cancelled(TypedDict):
    """Output of `atelier cancel --json`. `was` and `status` are running, queued, or how the run ended
    (finished, stopped, failed, crashed); `steps` has the last checkpoint of each training that the run had
    not finished; `command` continues the run, '' = nothing is left to do.
    """

    run: str
    was: str
    status: str
    steps: dict[str, int]
    command: str


def run(options: Namespace) -> int:
    """Cancel, and wait unless --no-wait. Returns 0 if the run has ended or was asked to, 1 if it failed while
    it was stopped. Raises ConfigError for a word that means no run, or several.
    """
    check_root(will_write=True)
    store = open_store()
    waiting = None if runs_called(manifests(store), options.run) else queued_run(store.root, options.run)
    if waiting is not None:
        return _told(_cancel_queued(store, waiting), is_json=options.json)
    manifest = run_called(store, options.run, "cancel")
    was = status_of(manifest)
    if was in ENDED:
        return _told(_result(store, manifest, was, was), is_json=options.json)
    reader = LogReader(store, manifest.id)
    reader.read()  # only what is said from now on is shown
    request_cancel(store.root, manifest.id)
    if options.no_wait:
        return _told(_result(store, manifest, was, was), is_json=options.json)
    manifest = _until_end(store, manifest, reader, is_silent=options.json)
    found = _result(store, manifest, was, status_of(manifest))
    _told(found, is_json=options.json)
    return int(found["status"] in ("failed", "crashed"))


def _until_end(store: Store, manifest: RunManifest, reader: LogReader, *, is_silent: bool) -> RunManifest:
    """Print what the run says until it has ended. Ctrl-C leaves the request standing."""
    said_at = time.monotonic()
    try:
        while True:
            status = status_of(manifest)  # before the last look: nothing is said after the end
            for line in reader.read():
                if not is_silent and _is_news(line):
                    said_at = time.monotonic()
                    _say(f"  {line['task']}: {line['text']}")
            if status != "running":
                break
            if time.monotonic() - said_at > TELL_S:
                said_at = time.monotonic()
                whose = Holder.read(manifest.holder) if manifest.holder else "its process"
                _say(f"  waits until {whose} has written its checkpoints (Ctrl-C: it stops all the same)")
            time.sleep(LOOK_S)
            manifest = read_manifest(store, manifest.id)
    except KeyboardInterrupt:
        _say(f"run {manifest.id} was asked to stop; `atelier runs {manifest.id}` shows when it has")
        raise
    withdraw(store.root, manifest.id)  # of a run that died meanwhile
    return manifest


def _is_news(line: LogLine) -> bool:
    return "state" in line or line["level"] != "info" or line["text"].startswith("stopped")


def _cancel_queued(store: Store, waiting: QueuedRun) -> Cancelled:
    """Cancel a run that had not begun when it was looked up."""
    from atelier.infra.stack import prefect_api  # late: Prefect, 1.5 s

    prefect_api.cancel(waiting.flow_run, "cancelled by `atelier cancel`")
    status = "queued"
    while status == "queued":
        found = prefect_api.read_run(waiting.flow_run)
        state = found.state if found is not None else None
        if state is not None and state.is_final():
            status = "finished" if state.is_completed() else "stopped" if state.is_cancelled() else "failed"
        else:
            time.sleep(LOOK_S)
    if begun := runs_called(manifests(store), waiting.id):
        return _result(store, begun[0], "running", status)
    return Cancelled(run=waiting.id, was="queued", status=status, steps={}, command="")


def _result(store: Store, manifest: RunManifest, was: str, status: str) -> Cancelled:
    steps = {
        row.model or row.name: max(found)
        for row in manifest.tasks
        if row.keeps and store.find(row.kind, row.fingerprint) is None
        if (found := [s for one in row.keeps for s in checkpoint_steps(store.address("trajectory", one))])
    }
    command = "" if status == "finished" else manifest.command
    return Cancelled(run=manifest.id, was=was, status=status, steps=steps, command=command)


def _told(found: Cancelled, *, is_json: bool) -> int:
    """Print what became of the run. Returns 0."""
    if is_json:
        print(json.dumps(found, indent=1))
        return 0
    run_id, was, status = found["run"], found["was"], found["status"]
    at = ", ".join(f"{name} at step {step}" for name, step in found["steps"].items())
    if was == status == "running":
        text = f"run {run_id} was asked to stop; it writes a checkpoint first"
    elif was in ENDED:
        text = f"run {run_id} has ended already ({status}); nothing to cancel"
    elif was == "queued" and status == "stopped":
        text = f"run {run_id} is cancelled; it had not begun"
    elif status == "finished":
        text = f"run {run_id} finished before the request reached it"
    elif status == "stopped":
        text = f"run {run_id} is cancelled; checkpoints: {at or 'none was needed'}"
    else:
        text = f"run {run_id} {status} while it was stopped"
    print(printable(text, 0))
    if found["command"] and was == "running" and status != "running":
        print(printable(f"continue {found['command']}", 0))
    return 0


def _say(text: str) -> None:
    print(printable(text, 0), file=sys.stderr, flush=True)
