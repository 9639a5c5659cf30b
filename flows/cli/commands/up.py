"""`atelier up`: start Prefect, MLflow, workers and all deployments on this machine."""

import argparse
import os
import time

from atelier.engine.config.error import ConfigError
from atelier.engine.config.pool import Pool
from atelier.flows.run.pools import gangs_at_once, of_worker
from atelier.flows.run.store_check import check_root
from atelier.infra.code.provenance import INSTALL, has_torch
from atelier.infra.launch.found_gpus import gpus_here, report_gpus
from atelier.infra.launch.slots import num_slots
from atelier.infra.stack.settings import check_binding
from atelier.infra.stack.stack import LIGHT, MLFLOW_PORT, PREFECT_PORT, Stack
from atelier.infra.store.store import Store, default_root

POOL, WITH_GPUS = "local", "gpu"


def run(options: argparse.Namespace) -> int:
    """Start missing parts, deploy, print the addresses. Returns the exit code. Raises ConfigError for ports
    that cannot be used.
    """
    check_root(will_write=True)
    check_binding(options.host or "127.0.0.1")
    started = time.monotonic()
    stack = Stack(Store(default_root()).root)
    ports = {
        flag: port_of(flag, getattr(options, flag.replace("-", "_")), default)
        for flag, default in (("prefect-port", PREFECT_PORT), ("mlflow-port", MLFLOW_PORT))
    }
    if len({*ports.values()}) == 1:
        raise ConfigError("--mlflow-port", f"{ports['mlflow-port']} is Prefect's port", "choose another")
    stack.up(ports["prefect-port"], ports["mlflow-port"], print)
    os.environ |= stack.client()
    from atelier.flows.deployments.deploy import deploy  # late: Prefect reads its settings at import

    deployed = deploy()
    limits = {LIGHT: deployed.light}
    if has_torch():
        limits |= {POOL: num_slots(deployed.pools[POOL])}
        limits |= _with_gpus(stack, deployed.pools.get(WITH_GPUS))
    else:
        print(f"no torch here, so no worker for the pool {POOL}: {INSTALL}, or a worker on another machine")
    for name, limit in limits.items():
        if stack.start_worker(name, limit):
            print(f"starting a worker for the pool {name}")
    deployed.wait_for_workers([*limits])
    show(stack)
    print(
        f"ready in {time.monotonic() - started:.0f} s: {len(deployed.flows)} deployments, store {stack.root}"
    )
    return 0


def _with_gpus(stack: Stack, pool: Pool | None) -> dict[str, int]:
    """The pool of GPUs and how many runs its worker has at a time; {} if this machine has none."""
    from atelier.infra.stack import prefect_api  # late: Prefect reads its settings at import

    if pool is None or gpus_here(is_worker=True) is None:
        return {}
    pool, found = of_worker(pool)
    if found is not None:
        with prefect_api.server() as client:
            report_gpus(stack.root, pool.name, found, prefect_api.workers(client, pool.name))
    return {pool.name: gangs_at_once(pool)}


def port_of(flag: str, given: str | None, default: int) -> int:
    """The given port, else the default. Raises ConfigError unless it is a number from 1024 to 65535."""
    if given is None:
        return default
    if not given.isdecimal() or not 1024 <= int(given) <= 65535:
        raise ConfigError(f"--{flag}", f"{given!r} is not a port", "give a number from 1024 to 65535")
    return int(given)


def show(stack: Stack) -> None:
    """Print the addresses of the pages and the sign-in."""
    addresses = stack.addresses
    if addresses is None:
        return
    print(f"Prefect   {addresses.prefect}   (start, watch and cancel runs)")
    print(f"MLflow    {addresses.experiments}   (compare runs, find models)")
    print(f"sign in   user {stack.credentials.user}, password in {stack.folder / 'credentials.json'}")
    print("          Prefect asks for user:password; `atelier status --password` prints it")
    print("next      atelier titan experiment=tiny pool=local")
