"""Layouts drawn from a seed that pass the checks: a teacher's, and one for each student."""

import random
from collections.abc import Iterator, Mapping

from atelier.engine.config.error import ConfigError
from atelier.engine.config.parallel import Axes, Parallel
from atelier.engine.config.role import Role
from atelier.engine.config.train import Train
from atelier.engine.plan.checks import check_layout
from tests.parity.cases import layout

TRIES = 5000


def drawn(
    roles: Mapping[str, Role], train: Train, *, ranks: int, number: int, seed: int
) -> dict[str, Parallel]:
    """`number` layouts of so many ranks, by description; in each at least one student has other axes than the
    root.
    """
    draw, found = random.Random(seed), dict[str, Parallel]()
    students = [name for name, role in roles.items() if role.teacher]
    for _ in range(TRIES):
        if len(found) == number:
            break
        sizes = split(draw, ranks, ("pipeline", "replicate", "shard", "context", "tensor"))
        own = {
            name: Axes(**split(draw, ranks // sizes["pipeline"], ("replicate", "shard", "context", "tensor")))
            for name in students
        }
        where = layout(**sizes, roles=own, sequence_parallel=draw.random() < 0.5, zero=draw.choice((1, 2, 3)))
        if all(axes == where.axes for axes in own.values()):
            continue
        try:
            check_layout(where, roles, train)
        except ConfigError:
            continue
        found[_name(sizes, own)] = where
    assert len(found) == number, f"only {len(found)} layouts of {ranks} ranks in {TRIES} draws"
    return found


def split(draw: random.Random, ranks: int, axes: tuple[str, ...]) -> dict[str, int]:
    """The prime factors of `ranks` distributed over the axes."""
    sizes = dict.fromkeys(axes, 1)
    for factor in _primes(ranks):
        sizes[draw.choice(axes)] *= factor
    return sizes


def _primes(number: int) -> Iterator[int]:
    for factor in range(2, number + 1):
        while number % factor == 0:
            number //= factor
            yield factor


def _name(sizes: Mapping[str, int], own: Mapping[str, Axes]) -> str:
    words = [_words(sizes), *(f"{name} {_words(axes.model_dump())}" for name, axes in own.items())]
    return ", ".join(words)


def _words(sizes: Mapping[str, int]) -> str:
    return " x ".join(f"{axis} {size}" for axis, size in sizes.items() if size > 1) or "alone"
