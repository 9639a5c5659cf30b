"""Read pools, sites and trackers from conf/."""

from collections.abc import Callable, Iterable

import yaml

from atelier import PROJECT
from atelier.engine.config.base import parse
from atelier.engine.config.device import AUTO, DEVICES
from atelier.engine.config.error import ConfigError, nearest
from atelier.engine.config.pool import Pool
from atelier.engine.config.record import KINDS
from atelier.engine.config.site import Site
from atelier.flows.run.catalog import conf_file, options
from atelier.infra.code.code_map import needs_torch
from atelier.infra.code.provenance import INSTALL, check_torch, has_torch
from atelier.infra.dag import Node
from atelier.infra.launch.batch_systems import batch_of
from atelier.infra.launch.found_gpus import FoundGpus, filled, gpus_here
from atelier.infra.launch.gpus import NONE_THERE, check_gpus
from atelier.infra.launch.slots import num_slots
from atelier.infra.sites.policy import EVERYTHING, SitePolicy
from atelier.infra.stack.stack import LIGHT
from atelier.infra.store.store import Store
from atelier.infra.tracking.factory import TrackerSpec

LIGHT_LIMIT = 50  # parent flows at once
TORCH_ELSEWHERE = ", or run it on a pool whose machines have torch (pool=<name>)"
POOL_WHEN_BLANK = "local"  # of a run on Prefect, in place of the flow's own process


def pool_of(name: str) -> Pool:
    """conf/pool/<name>.yaml, validated."""
    if name == LIGHT:
        return Pool(name=LIGHT, slots=LIGHT_LIMIT)
    return parse(Pool, yaml.safe_load(conf_file(f"pool/{name}").read_text()) or {}, f"pool.{name}")


def tracker_of(name: str) -> TrackerSpec:
    """conf/tracker/<name>.yaml, validated."""
    text = conf_file(f"tracker/{name}").read_text()
    return parse(TrackerSpec, yaml.safe_load(text) or {}, f"tracker.{name}")


def task_names() -> list[str]:
    """All tasks, in alphabetical order."""
    return sorted(path.stem for path in (PROJECT / "tasks").glob("*.py") if path.stem != "__init__")


def check_policy(policy: SitePolicy) -> None:
    """Raises ConfigError for unknown tasks, kinds, pools or trackers."""
    for given, known, place in (
        (policy.tasks, [*task_names(), EVERYTHING], "--tasks"),
        (policy.sends, [*KINDS, EVERYTHING], "--send"),
        ((policy.pool,), options("pool"), "--pool"),
        ((policy.tracker,), options("tracker"), "--tracker"),
    ):
        if strange := next((word for word in given if word not in known), ""):
            near = nearest(strange, known)
            raise ConfigError(
                place, f"there is no {strange!r}", f"did you mean {near}?" if near else ", ".join(known)
            )
    pool, way_out = pool_of(policy.pool), "give a pool that is not served, such as here"
    if pool.is_served:
        raise ConfigError("--pool", f"{policy.pool} is served by Prefect", way_out)
    if pool.paper:
        raise ConfigError("--pool", f"{policy.pool} is for plans only: nothing can run on it", way_out)


def site_of(pool: Pool) -> Site:
    """conf/site/<pool.site>.yaml, validated. Raises ConfigError if there is no such site."""
    there = options("site")
    if pool.site not in there:
        raise ConfigError("pool.site", f"no site {pool.site!r}", f"there are: {', '.join(there)}")
    text = conf_file(f"site/{pool.site}").read_text()
    return parse(Site, yaml.safe_load(text) or {}, f"site.{pool.site}")


def gangs_at_once(pool: Pool) -> int:
    """How many runs a worker of the pool has at a time: as many as fit on its machine; LIGHT_LIMIT if a batch
    system queues them, or while the worker's GPUs are not known.
    """
    return num_slots(pool) if pool.launcher == "here" and pool.gpu != AUTO else LIGHT_LIMIT


def of_worker(pool: Pool) -> tuple[Pool, FoundGpus | None]:
    """The pool as a worker on this machine serves it, and the GPUs that it finds if the pool asks for that.
    Raises ConfigError if there are none.
    """
    if pool.gpu != AUTO:
        return pool, None
    found = gpus_here(is_worker=True)
    if found is None:
        raise ConfigError("pool.gpu", f"{pool.name} serves GPUs, but {NONE_THERE}", "atelier worker local")
    return filled(pool, found), found


def gpu_notes(pools: Iterable[Pool]) -> list[str]:
    """Lines of a plan about the GPUs that its pools have found."""
    found = {pool.name or "here": pool for pool in pools if pool.found}
    guess = "; their speed is unknown: times are guesses until a training ran"
    return [
        f"pool {name}: {pool.found}{'' if pool.gpu in DEVICES else guess}" for name, pool in found.items()
    ]


def check_launcher(pool: Pool, root: str) -> None:
    """Raises ConfigError if this machine lacks the pool's GPUs, or if the batch system would refuse the
    pool's jobs, with its message.
    """
    if pool.launcher == "here":
        check_gpus(pool)
    else:
        batch_of(pool, site_of(pool)).check(root)


def served_pools() -> dict[str, Pool]:
    """Pools of conf/ that are Prefect work pools: those with a name, equal to the file's."""
    found = {name: pool_of(name) for name in options("pool")}
    return {pool.name: pool for pool in found.values() if pool.name and not pool.members}


def check_nodes_here(nodes: Iterable[Node], pool_for: Callable[[str], Pool], store: Store) -> None:
    """Raises ConfigError if a node with products to make would compute with this interpreter's torch, and
    there is none. `pool_for` gives the pool of a task.
    """
    if has_torch():
        return
    for node in nodes:
        is_made = all(store.find(p.kind, p.fingerprint) is not None for p in node.products.values())
        if not is_made and needs_torch(node.task) and _is_here(pool_for(node.task)):
            check_torch(node.name, TORCH_ELSEWHERE)


def check_worker(pool: Pool) -> None:
    """Raises ConfigError if a worker of the pool here would take tasks that compute with torch, and there is
    none.
    """
    if has_torch() or not _is_here(pool):
        return
    tasks = site_of(pool).tasks
    if not tasks or any(map(needs_torch, tasks)):
        raise ConfigError(
            "torch",
            f"is not installed here, and a worker of {pool.name} computes with it",
            f"{INSTALL}, or a site whose `tasks` prepare data only (conf/site)",
        )


def _is_here(pool: Pool) -> bool:
    """Whether the pool's ranks run in this interpreter: on this machine, or on nodes that share it."""
    if pool.launcher == "slurm":
        slurm = site_of(pool).slurm
        return not (slurm.python or slurm.container)
    return pool.launcher == "here"
