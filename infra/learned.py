"""What is known of a pool from running on it: facts that were measured, `{root}/pools/<pool>.json`, and what
trainings took beside what was planned, `{root}/pools/<pool>/<trajectory>.json`, from which later plans learn.
"""

import json
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from atelier.engine.spec.error import DamageError
from atelier.engine.spec.pool import Pool
from atelier.engine.storage import join, names, read_object, remove, write_bytes
from atelier.infra.machine import has_half
from atelier.infra.store import Store

FOLDER = "pools"
MOST = 20  # lessons of a pool that count: the newest
HERE = "here"


@dataclass(frozen=True)
class Lesson:
    """One training: seconds of a step, as the arithmetic has them without what was learned, and measured."""

    task: str
    planned_s: float
    measured_s: float
    ended: float

    @property
    def ratio(self) -> float:
        return self.measured_s / self.planned_s


def learn(store: Store, pool: str, fingerprint: str, lesson: Lesson) -> None:
    """Keep a lesson; the same training's again is the same file."""
    place = join(store.root, FOLDER, pool or HERE, f"{fingerprint[:16]}.json")
    write_bytes(place, json.dumps(asdict(lesson), sort_keys=True).encode())


def facts(root: str, pool: Pool) -> Pool:
    """The pool with what was measured of it filled in where its file says auto."""
    pool = with_half(pool)
    try:
        found = read_object(join(root, FOLDER, f"{pool.name or HERE}.json"))
    except (FileNotFoundError, DamageError):
        return pool
    known = {
        name: value
        for name, value in found.items()
        if getattr(pool, name, None) == "auto" and _is_positive(value)
    }
    return pool.model_copy(update=known)


def with_half(pool: Pool) -> Pool:
    """The pool with its arithmetic filled in; CPUs are taken for like this machine's."""
    if pool.half != "auto":
        return pool
    return pool.model_copy(update={"half": has_half() if pool.is_cpu else True})


def keep_facts(root: str, pool: Pool, found: Mapping[str, float]) -> None:
    """Keep what was measured of a pool. What trainings taught is forgotten: it was beside other facts."""
    write_bytes(
        join(root, FOLDER, f"{pool.name or HERE}.json"), json.dumps(dict(found), sort_keys=True).encode()
    )
    folder = join(root, FOLDER, pool.name or HERE)
    for name in names(folder):
        remove(join(folder, name))


def lessons(store: Store, pool: str) -> list[Lesson]:
    """The newest of a pool, oldest first; unreadable ones are left out."""
    folder = join(store.root, FOLDER, pool or HERE)
    found = []
    for name in names(folder):
        try:
            lesson = Lesson(**read_object(join(folder, name)))
        except (DamageError, TypeError, FileNotFoundError):
            continue
        if all(map(_is_positive, (lesson.planned_s, lesson.measured_s, lesson.ended))):
            found.append(lesson)
    return sorted(found, key=lambda lesson: lesson.ended)[-MOST:]


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e30


def factor(store: Store, pool: str) -> float:
    """How many times as long as planned a step takes there: the median of the lessons; 1 without any."""
    ratios = [lesson.ratio for lesson in lessons(store, pool)]
    return statistics.median(ratios) if ratios else 1.0
