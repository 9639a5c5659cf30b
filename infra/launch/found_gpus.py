"""Fill in a pool that finds its GPUs (`gpu: auto`): type, number and memory. A pool without workers has the
free GPUs of this machine. The workers of a served pool report theirs in the store, `pools/<pool>.gpus.json`,
for plans of other machines.
"""

import json
import re
import socket
from contextlib import suppress

from atelier.engine.config.base import Spec
from atelier.engine.config.device import AUTO, CPU, UNKNOWN, known
from atelier.engine.config.error import ConfigError, DamageError
from atelier.engine.config.pool import FACTS, Pool
from atelier.engine.io.storage import join, read_as, write_bytes
from atelier.infra.launch.gpus import NONE_THERE, ON_CPUS, Gpu, counted, gpu_names, reported, type_of, visible

FOLDER = "pools"
LEFT = 0.93  # of a GPU's memory for tensors, as an H100's 80 of 86 GB; the rest is the driver's and CUDA's


class FoundGpus(Spec):
    """The GPUs of one type of a machine."""

    host: str
    name: str  # the driver's
    total: int
    free: int  # those that no program uses
    memory_gb: float  # of the smallest; 0 = unknown


def with_gpus(root: str, pool: Pool) -> Pool:
    """The pool with the facts of its GPUs if its device type is auto, else unchanged. Raises ConfigError for
    more GPUs than there are, and for a served pool without any.
    """
    if pool.gpu != AUTO:
        return pool
    if pool.launcher != "here":
        raise ConfigError("pool.gpu", f"is auto, but {pool.launcher} starts the gangs", "give their type")
    if pool.name and (told := _reported(root, pool.name)) is not None:
        return filled(pool, told)
    found = gpus_here()
    if found is not None:
        return filled(pool, found)
    if pool.name:
        way_out = f"on the machine with the GPUs: atelier worker {pool.name}"
        raise ConfigError("pool", f"no worker has reported the GPUs of {pool.name}", way_out)
    if pool.gpus:
        raise ConfigError("pool.gpus", f"is {pool.gpus}, but {NONE_THERE}", ON_CPUS)
    return pool.model_copy(update={"gpu": CPU})


def gpus_here(*, is_worker: bool = False) -> FoundGpus | None:
    """This machine's GPUs that CUDA_VISIBLE_DEVICES allows, of the type of most of them; None without any.
    A worker counts GPUs of Atelier's other gangs as free: its runs wait for them.
    """
    names, there = gpu_names(), {gpu.uuid: gpu for gpu in reported() or ()}
    allowed = visible(len(names)) if names else []
    if not allowed:
        return None
    each = [there.get(name, Gpu(name, names[0], 0.0, 0.0)) for name in allowed]
    types = [gpu.name for gpu in each]
    name = max(dict.fromkeys(types), key=types.count)
    mine = [gpu for gpu in each if gpu.name == name]
    idle = [] if is_worker else [gpu for gpu in mine if not gpu.is_busy]
    free = idle or [gpu for gpu in mine if not gpu.is_foreign] or mine
    memory_gb = min(gpu.memory_gb for gpu in mine)
    return FoundGpus(
        host=socket.gethostname(), name=name, total=len(mine), free=len(free), memory_gb=memory_gb
    )


def filled(pool: Pool, found: FoundGpus) -> Pool:
    """The pool with these GPUs: the free ones, or as many as it asks for."""
    there = counted([found.name] * found.total)
    if pool.gpus > found.total:
        way_out = f"pool.gpus={found.total} would fit"
        raise ConfigError("pool.gpus", f"is {pool.gpus}, but {found.host} has {there}", way_out)
    number, kind = pool.gpus or found.free, type_of(found.name)
    base = known(kind) or UNKNOWN
    facts: dict[str, float | str] = {} if kind else {name: getattr(UNKNOWN, name) for name in FACTS}
    facts["stack"] = "atelier"  # what runs here, whatever a table was measured with
    if found.memory_gb:
        left = round(LEFT * found.memory_gb, 1)
        facts["memory_gb"] = min(left, base.memory_gb) if kind else left
    given = {name: value for name, value in facts.items() if getattr(pool, name) == AUTO}
    about = {
        "gpu": kind or re.sub(r"\W+", "-", found.name.lower()),
        "gpus": number,
        "gpus_per_node": number,
        "found": f"{number} of {there} at {found.host}",
    }
    return pool.model_copy(update={**given, **about})


def report_gpus(root: str, pool: str, found: FoundGpus, workers: list[str]) -> None:
    """Report a machine's GPUs as those of the pool. Raises ConfigError if other `workers` serve it on a
    machine with other GPUs.
    """
    told = _reported(root, pool)
    is_other = told is not None and told.host != found.host and workers
    if told is not None and is_other and (told.name, told.total) != (found.name, found.total):
        raise ConfigError(
            "pool",
            f"{pool} has {counted([told.name] * told.total)} at {told.host}, but {found.host} has"
            f" {counted([found.name] * found.total)}",
            f"copy conf/pool/{pool}.yaml for this machine, with another name",
        )
    write_bytes(_place(root, pool), json.dumps(found.model_dump(), sort_keys=True).encode())


def _reported(root: str, pool: str) -> FoundGpus | None:
    with suppress(FileNotFoundError, DamageError):
        return read_as(FoundGpus, _place(root, pool), "the GPUs of a pool")
    return None


def _place(root: str, pool: str) -> str:
    return join(root, FOLDER, f"{pool}.gpus.json")
