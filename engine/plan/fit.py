"""Fit a machine's figures to steps measured on it, for better plans. Torch-free."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product

from atelier.engine.config.parallel import Parallel
from atelier.engine.config.pool import Pool
from atelier.engine.config.role import Role
from atelier.engine.config.train import Train
from atelier.engine.plan.estimate import Setting

FACTS = ("peak_tflops", "memory_gbps", "launch_us")  # per core, from gangs of one rank
CROWD = ("crowded",)  # from gangs of one rank and one thread, several at once
THREADS = ("threaded",)  # from one rank of several threads
LINKS = ("node_gbps", "latency_us")  # from gangs of several ranks
GRID, STARTS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0), 6
ROUNDS = 200
WIDEST, FINEST = 2.0, 1.002


@dataclass(frozen=True)
class Probe:
    """A short training with the median seconds of its steps; `beside`: number of trainings that ran at the
    same time.
    """

    name: str
    role: Role
    train: Train
    parallel: Parallel
    step_s: float = 0.0
    beside: int = 0

    @cached_property
    def setting(self) -> Setting:
        """Its setting on any pool: what a model needs is computed once."""
        return Setting.of(self.role, self.train, Pool(), vocab=0)


def fit(pool: Pool, probes: Sequence[Probe]) -> Pool:
    """The pool with the figures that minimise the sum of squared log errors of the probes' steps: coordinate
    descent with shrinking factors from several starts. Slowdown by other cores is measured separately.
    """
    shared = [probe for probe in probes if probe.parallel.ranks > 1]
    lone = [probe for probe in probes if probe.parallel.ranks == 1 and not probe.beside]
    wide = [probe for probe in lone if probe.parallel.threads != 1]
    lone = [probe for probe in lone if probe not in wide]
    start = {name: getattr(pool.device, name) for name in (*FACTS, *LINKS)}
    crowded = _crowded(lone, [probe for probe in probes if probe.beside])
    found = pool.model_copy(update=start | {"matmul": 1.0, "crowded": crowded, "threaded": 1.0})
    for names, some, loss in ((FACTS, lone, error), (THREADS, wide, error), (LINKS, shared, _links_error)):
        if some:
            found = _search(found, names, partial(loss, probes=some))
    return found


def _crowded(alone: Sequence[Probe], beside: Sequence[Probe]) -> float:
    """The share of its speed that a core keeps while others compute: the median over probes measured both
    ways.
    """
    paces: dict[str, list[float]] = {}
    for probe in alone:
        paces.setdefault(probe.name, []).append(1 / probe.step_s)
    ratios = [1 / probe.step_s / statistics.mean(paces[probe.name]) for probe in beside]
    return min(1.0, statistics.median(ratios)) if ratios else 1.0


def error(pool: Pool, probes: Sequence[Probe]) -> float:
    """Sum of squared logarithms of planned / measured time."""
    return sum(math.log(planned(pool, probe) / probe.step_s) ** 2 for probe in probes)


def _links_error(pool: Pool, probes: Sequence[Probe]) -> float:
    """The error; infinite for links faster than the memory through which processes of one machine
    communicate.
    """
    if pool.device.node_gbps > pool.device.memory_gbps:
        return math.inf
    return error(pool, probes)


def planned(pool: Pool, probe: Probe) -> float:
    setting = replace(probe.setting, pool=pool, device=pool.device)
    return setting.estimate(probe.train, probe.parallel, steps=1).step_s


def _search(pool: Pool, names: Sequence[str], loss: Callable[[Pool], float]) -> Pool:
    """The best pool reached from the best points of a coarse grid around the pool's figures."""
    grid = [
        pool.model_copy(
            update={name: getattr(pool, name) * size for name, size in zip(names, sizes, strict=True)}
        )
        for sizes in product(GRID, repeat=len(names))
    ]
    starts = sorted(grid, key=loss)[:STARTS]
    return min((_descend(start, names, loss) for start in starts), key=loss)


def _descend(pool: Pool, names: Sequence[str], loss: Callable[[Pool], float]) -> Pool:
    factor, best = WIDEST, loss(pool)
    for _ in range(ROUNDS):
        before = best
        for name in names:
            for change in (factor, 1 / factor):
                other = pool.model_copy(update={name: getattr(pool, name) * change})
                if (now := loss(other)) < best:
                    pool, best = other, now
        if best == before:
            factor = math.sqrt(factor)
            if factor < FINEST:
                break
    return pool
