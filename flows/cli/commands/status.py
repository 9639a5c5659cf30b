"""`atelier status`: show the parts of the local stack and the runs in progress. Corrects addresses that
MLflow keeps, if the store was moved.
"""

import argparse
import json
import shlex
from contextlib import suppress

from atelier.engine.config.error import ConfigError, printable
from atelier.flows.run.store_check import open_store
from atelier.infra.report.listing import run_row
from atelier.infra.stack.stack import Stack
from atelier.infra.store.run_manifest import manifests
from atelier.infra.tracking.own_database import follow


def run(options: argparse.Namespace) -> int:
    """Print the status. Returns 0 if every started part is running, else 1. Raises ConfigError for --env
    without a running stack.
    """
    store = open_store()
    with suppress(ConfigError):  # the tracker reports an unreadable database
        follow(store)
    stack = Stack(store.root)
    if options.password:
        print(stack.credentials.prefect)
        return 0
    if options.env:
        client = stack.client()
        if not client:
            raise ConfigError("--env", f"the stack of {store.root} is not running", "atelier up starts it")
        print("\n".join(f"export {key}={shlex.quote(value)}" for key, value in client.items()))
        return 0
    parts = stack.parts()
    running = [one for one in map(run_row, manifests(store)) if one["status"] == "running"]
    if options.json:
        print(json.dumps({"parts": parts, "runs": [one["id"] for one in running]}, indent=1))
    elif not parts:
        print("nothing is started for this store; atelier up starts the stack")
    else:
        for part in parts:
            state = "running" if part["running"] and part["answers"] is not False else "not running"
            addresses = stack.addresses if part["name"] == "mlflow" else None
            url = addresses.experiments if addresses else part["url"]
            print(f"{part['name']:<16} {state:<12} {url}  log {part['log']}")
        for one in running:
            print(printable(f"run {one['id']}  {one['command']}", 0))
    return 0 if parts and all(part["running"] for part in parts) else 1
