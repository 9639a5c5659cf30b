"""Facts of a machine from steps that were measured on it: those with which plans come nearest. Torch-free."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.plan.estimate import estimate
from engine.spec.parallel import Parallel
from engine.spec.pool import Pool
from engine.spec.role import Role
from engine.spec.train import Train

FACTS = ("peak_tflops", "memory_gbps", "launch_us")  # of one core, from gangs of one rank
LINKS = ("node_gbps", "latency_us")  # from gangs of several
ROUNDS = 60
WIDEST, FINEST = 2.0, 1.01


@dataclass(frozen=True)
class Probe:
    """A short training and the median seconds of its steps."""

    name: str
    role: Role
    train: Train
    parallel: Parallel
    step_s: float = 0.0


def fit(pool: Pool, probes: Sequence[Probe]) -> Pool:
    """The pool with the facts that make the sum of squared log errors of the probes' steps least, found by
    changing one after another by ever smaller factors.
    """
    lone = [probe for probe in probes if probe.parallel.ranks == 1]
    shared = [probe for probe in probes if probe.parallel.ranks > 1]
    start = pool.model_copy(update={name: getattr(pool.device, name) for name in (*FACTS, *LINKS)})
    found = _descend(start.model_copy(update={"matmul": 1.0}), FACTS, lambda p: error(p, lone))
    return _descend(found, LINKS, lambda p: error(p, shared)) if shared else found


def error(pool: Pool, probes: Sequence[Probe]) -> float:
    """Sum of squared logarithms of planned by measured."""
    return sum(math.log(planned(pool, probe) / probe.step_s) ** 2 for probe in probes)


def planned(pool: Pool, probe: Probe) -> float:
    return estimate(probe.role, probe.train, probe.parallel, pool, vocab=0, steps=1).step_s


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
