"""`atelier worker <pool>`: serve a pool from this machine until it is ended."""

import argparse
import os
import signal
import subprocess

from engine.spec.base import nearest
from engine.spec.error import ConfigError
from flows.cli.root import check_root
from flows.served.pools import pool_of, served_pools, site_of
from infra.slots import num_slots
from infra.stack.stack import LIGHT, Stack, join_stack
from infra.store import Store, default_root


def run(options: argparse.Namespace) -> int:
    """Run Prefect's process worker in the foreground; Ctrl-C and SIGTERM end it."""
    known = [*served_pools(), LIGHT]
    if options.pool not in known:
        near = nearest(options.pool, known)
        way_out = (f"did you mean {near}? " if near else "") + f"there are: {', '.join(known)}"
        raise ConfigError("pool", f"no pool {options.pool!r}", way_out)
    pool = pool_of(options.pool)
    os.environ |= site_of(pool).environment()
    check_root(will_write=True)
    root = Store(default_root()).root
    join_stack(root)
    from infra.stack import api  # now: Prefect reads its settings when it is imported

    with api.server() as client:
        api.check_pool_exists(client, options.pool)
    service = Stack(root).worker(options.pool, num_slots(pool), options.name or "")
    process = subprocess.Popen(service.command, env=service.environment)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: process.send_signal(number))
    return process.wait()
