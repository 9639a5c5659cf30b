"""Pools of single tasks, `pool.tasks={train: gpu, score: local}`: which pool runs a node, and refusals."""

from collections.abc import Iterable, Mapping

from atelier.engine.config.error import ConfigError, nearest
from atelier.engine.config.pool import Pool
from atelier.flows.run.catalog import options
from atelier.flows.run.pools import POOL_WHEN_BLANK, pool_of, site_of, task_names
from atelier.infra.calibration.history import facts
from atelier.infra.dag import Node

TRAINING = ("train", "finetune")  # the first one with a pool of its own decides the layout


def with_tasks(root: str, pool: Pool) -> tuple[Pool, dict[str, Pool]]:
    """The run's pool, and those of tasks that run elsewhere. If Prefect serves one of them, pools of the
    flow's own process are the pool `local`, as in forms. Raises ConfigError for an unknown task or pool, and
    for pools with different stores.
    """
    if not pool.tasks:
        return pool, {}
    each: dict[str, Pool] = {}  # one object for each pool, by which nodes are grouped
    for task, name in pool.tasks.items():
        each[name] = _named(root, pool, task, name, each.get(name))
    found = {task: each[name] for task, name in pool.tasks.items()}
    for task, one in found.items():
        store, theirs = site_of(pool).store or root, site_of(one).store or root
        if store.rstrip("/") != theirs.rstrip("/"):
            raise ConfigError(
                f"pool.tasks.{task}",
                f"{pool.tasks[task]} has the store {theirs} (conf/site/{one.site}.yaml), but the run's pool"
                f" {store}",
                "a run has one store: give both sites the same",
            )
    if not any(one.is_served for one in (pool, *found.values())):
        return _as_one(pool, found)
    local = facts(root, pool_of(POOL_WHEN_BLANK)).model_copy(update={"queue": pool.queue})
    served = {task: _served(one, local, f"pool.tasks.{task}", pool) for task, one in found.items()}
    return _as_one(_served(pool, local, "pool", pool).model_copy(update={"tasks": pool.tasks}), served)


def _as_one(pool: Pool, tasks: dict[str, Pool]) -> tuple[Pool, dict[str, Pool]]:
    """The pools, with the run's in place of its equals."""
    plain = pool.model_copy(update={"tasks": {}})
    return pool, {task: pool if one == plain else one for task, one in tasks.items()}


def _named(root: str, pool: Pool, task: str, name: str, before: Pool | None) -> Pool:
    """The pool of a task, read unless it was `before`."""
    place = f"pool.tasks.{task}"
    for word, known, what in ((task, task_names(), "task"), (name, options("pool"), "pool")):
        if word not in known:
            near = nearest(word, known)
            hint = f"did you mean {near}? " if near else ""
            raise ConfigError(place, f"there is no {what} {word!r}", f"{hint}there are: {', '.join(known)}")
    return before or facts(root, pool_of(name)).model_copy(update={"queue": pool.queue})


def _served(one: Pool, local: Pool, place: str, main: Pool) -> Pool:
    """The pool, or `local` in place of one that the flow's own process would run."""
    if one.is_served or one.paper:
        return one
    if one.launcher != "here":
        others = ", ".join(f"{task}: {name}" for task, name in main.tasks.items())
        way_out = "give its file in conf/pool a name, then atelier up and atelier worker serve it"
        raise ConfigError(
            place, f"{one.launcher} is not served, but Prefect serves others ({others})", way_out
        )
    return local


def training_pool(pool: Pool, tasks: Mapping[str, Pool]) -> Pool:
    """The pool that trains, for which a layout is chosen."""
    return next((tasks[task] for task in TRAINING if task in tasks), pool)


def moved_notes(pool: Pool, tasks: Mapping[str, Pool]) -> list[str]:
    """A line of a plan about pools that `local` replaces."""
    moved = {name: None for task, name in pool.tasks.items() if name != tasks[task].name == POOL_WHEN_BLANK}
    if not moved:
        return []
    return [f"{POOL_WHEN_BLANK} runs the tasks of the pool {', '.join(moved)}: Prefect serves this run"]


def check_nodes(pool: Pool, tasks: Mapping[str, Pool], nodes: Iterable[Node]) -> None:
    """Raises ConfigError for a pool of a task that the flow does not have, and for a task that a pool's site
    refuses.
    """
    there = list(dict.fromkeys(node.task for node in nodes))
    if stray := next((task for task in tasks if task not in there), ""):
        way_out = f"it has: {', '.join(there)}"
        raise ConfigError(f"pool.tasks.{stray}", "does nothing: the flow has no such task", way_out)
    for task in there:
        site = site_of(tasks.get(task, pool))
        if site.tasks and task not in site.tasks:
            name = tasks.get(task, pool).site
            raise ConfigError(
                f"pool.tasks.{task}" if task in tasks else "pool",
                f"its site {name} does not run {task} (tasks of conf/site/{name}.yaml:"
                f" {', '.join(site.tasks)})",
                f"pool.tasks={{{task}: <another pool>}}",
            )
