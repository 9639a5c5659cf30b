"""`atelier worker <pool>`: serve a pool from this machine until it is stopped."""

import argparse
import os
import signal
import subprocess

from atelier.engine.config.error import ConfigError, nearest
from atelier.engine.config.pool import Pool
from atelier.flows.run.catalog import options as catalog
from atelier.flows.run.pools import (
    check_launcher,
    check_worker,
    gangs_at_once,
    of_worker,
    pool_of,
    served_pools,
    site_of,
)
from atelier.flows.run.store_check import check_root
from atelier.infra.launch.batch_job import BatchJob
from atelier.infra.launch.batch_systems import batch_of
from atelier.infra.launch.found_gpus import report_gpus
from atelier.infra.launch.slots import num_slots
from atelier.infra.stack.stack import LIGHT, Stack, join_stack
from atelier.infra.store.store import Store, default_root


def run(options: argparse.Namespace) -> int:
    """Run Prefect's process worker in the foreground; Ctrl-C and SIGTERM stop it."""
    known = [*served_pools(), LIGHT]
    if options.show:
        return _show(options.pool)
    pool = _pool(options.pool, known)
    if pool.name != LIGHT:
        check_worker(pool)
    os.environ |= site_of(pool).environment()
    check_root(will_write=True)
    root = Store(default_root()).root
    pool, found = of_worker(pool)
    check_launcher(pool, root)
    join_stack(root)
    from atelier.infra.stack import prefect_api  # late: Prefect reads its settings at import
    from atelier.infra.stack.deployments import check_command, knock  # as above

    with prefect_api.server() as client:
        prefect_api.check_pool_exists(client, options.pool)
        check_command(client, options.pool)
        if found is not None:
            report_gpus(root, pool.name, found, prefect_api.workers(client, pool.name))
        knock(client)  # wake runs that died with an earlier worker
    service = Stack(root).worker(options.pool, gangs_at_once(pool), options.name or "")
    process = subprocess.Popen(service.command, env=service.environment)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: process.send_signal(number))
    return process.wait()


def _pool(name: str, known: list[str]) -> Pool:
    """The pool. Raises ConfigError for an unknown one."""
    if name not in known:
        near = nearest(name, known)
        way_out = (f"did you mean {near}? " if near else "") + f"there are: {', '.join(known)}"
        if name in catalog("pool") and not pool_of(name).name:
            way_out = f"give conf/pool/{name}.yaml the line name: {name}, then atelier up or deploy"
            raise ConfigError("pool", f"{name} is not served", way_out)
        raise ConfigError("pool", f"no pool {name!r}", way_out)
    return pool_of(name)


def _show(name: str) -> int:
    """Print the job that would be submitted to the pool's batch system."""
    pool = _pool(name, catalog("pool"))
    if pool.launcher == "here":
        raise ConfigError("--show", f"{name} has no batch system", "use it with slurm or kubernetes pools")
    root = Store(default_root()).root
    ranks = num_slots(pool) if not pool.is_cpu else 1
    gang = BatchJob(id="away-0", name="train", root=root, nodes=2, ranks=ranks, threads=1)
    print(batch_of(pool, site_of(pool)).show(gang))
    return 0
