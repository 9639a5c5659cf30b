"""`atelier worker <pool>`: serve a pool from this machine until it is ended."""

import argparse
import signal
import subprocess

from engine.spec.base import nearest
from engine.spec.error import ConfigError
from flows.cli.catalog import options as options_of
from flows.cli.root import check_root
from infra.slots import num_slots
from infra.stack.stack import LIGHT, Stack, join_stack
from infra.store import Store, default_root


def run(options: argparse.Namespace) -> int:
    """Run Prefect's process worker in the foreground; Ctrl-C and SIGTERM end it."""
    from flows.served.deploy import pool_of  # Hydra: help does without

    check_root(will_write=True)
    known = [*(name for name in options_of("pool") if name != "here"), LIGHT]
    if options.pool not in known:
        near = nearest(options.pool, known)
        raise ConfigError(
            "pool",
            f"no pool {options.pool!r}",
            (f"did you mean {near}? " if near else "") + f"there are: {', '.join(known)}",
        )
    root = Store(default_root()).root
    join_stack(root)
    from infra.stack import api  # Prefect's client: a second that the errors above do without

    with api.server() as client:
        api.check_pool_exists(client, options.pool)
    limit = 50 if options.pool == LIGHT else num_slots(pool_of(options.pool))
    service = Stack(root).worker(options.pool, limit, options.name or "")
    process = subprocess.Popen(service.command, env=service.environment)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: process.send_signal(number))
    return process.wait()
