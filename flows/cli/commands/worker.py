"""`atelier worker <pool>`: serve a pool from this machine until it is ended."""

import argparse
import signal
import subprocess

from engine.spec.base import nearest
from engine.spec.error import ConfigError
from flows.cli.root import check_root
from infra.slots import num_slots
from infra.stack.stack import LIGHT, Stack, join_stack
from infra.store import Store, default_root


def run(options: argparse.Namespace) -> int:
    """Run Prefect's process worker in the foreground; Ctrl-C and SIGTERM end it."""
    check_root(will_write=True)
    root = Store(default_root()).root
    join_stack(root)  # before Prefect is imported: it reads its settings only then
    from flows.served.deploy import LIGHT_LIMIT, pool_of, served_pools  # help does without Prefect

    known = [*served_pools(), LIGHT]
    if options.pool not in known:
        near = nearest(options.pool, known)
        raise ConfigError(
            "pool",
            f"no pool {options.pool!r}",
            (f"did you mean {near}? " if near else "") + f"there are: {', '.join(known)}",
        )
    from infra.stack import api  # as above

    with api.server() as client:
        api.check_pool_exists(client, options.pool)
    limit = LIGHT_LIMIT if options.pool == LIGHT else num_slots(pool_of(options.pool))
    service = Stack(root).worker(options.pool, limit, options.name or "")
    process = subprocess.Popen(service.command, env=service.environment)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: process.send_signal(number))
    return process.wait()
