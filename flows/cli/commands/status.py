"""`atelier status`: show the parts of the local stack and the runs in progress. Corrects addresses that
MLflow keeps, if the store was moved.
"""

import argparse
import json
import os
import shlex
import socket
import sys
from contextlib import suppress
from urllib.parse import urlsplit

from atelier.engine.config.error import ConfigError, printable
from atelier.flows.run.store_check import open_store
from atelier.infra.launch.locks import user
from atelier.infra.report.listing import run_row
from atelier.infra.stack.settings import Addresses
from atelier.infra.stack.stack import Stack
from atelier.infra.store.run_manifest import manifests
from atelier.infra.tracking.own_database import follow


def run(options: argparse.Namespace) -> int:
    """Print the status. Returns 0 if every started part is running, else 1. Raises ConfigError for --env and
    --join without a running stack.
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
    if options.join:
        if stack.addresses is None or not stack.client():
            raise ConfigError("--join", f"the stack of {store.root} is not running", "atelier up starts it")
        login = f"{user(os.getuid()).split()[0]}@{socket.gethostname()}"
        print(join_block(store.root, stack.addresses, stack.credentials.user, login))
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


def join_block(root: str, addresses: Addresses, name: str, login: str) -> str:
    """Lines for a shell of another machine that make it serve the pool gpu. The servers listen on loopback
    only: ssh carries their ports. It also fetches the password, which the lines do not have.
    """
    ports = [urlsplit(url).port for url in (addresses.prefect, addresses.mlflow)]
    tunnels = " ".join(f"-L {port}:127.0.0.1:{port}" for port in ports)
    asked = f"ATELIER_ROOT={shlex.quote(root)} {shlex.quote(sys.executable)} -m atelier status --password"
    store = "with its credentials, AWS_..." if "://" in root else "this folder, shared with that machine"
    return "\n".join(
        (
            f"ssh -f -N -o ExitOnForwardFailure=yes {tunnels} {login}",
            f"export ATELIER_ROOT={shlex.quote(root)}   # {store}",
            f"export PREFECT_API_URL={addresses.prefect}/api",
            f'export PREFECT_API_AUTH_STRING="$(ssh {login} {shlex.quote(asked)})"',
            f"export MLFLOW_TRACKING_URI={addresses.mlflow}",
            f"export MLFLOW_TRACKING_USERNAME={name}",
            'export MLFLOW_TRACKING_PASSWORD="${PREFECT_API_AUTH_STRING#*:}"',
            "atelier worker gpu",
        )
    )
