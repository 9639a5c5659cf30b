"""What trainings on a pool took beside what was planned: `{root}/pools/<pool>/<trajectory>.json`, one for
each training, from which later plans learn.
"""

import json
import statistics
from dataclasses import asdict, dataclass

from engine.storage import join, names, read_bytes, write_bytes
from infra.store import Store

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


def lessons(store: Store, pool: str) -> list[Lesson]:
    """The newest of a pool, oldest first; unreadable ones are left out."""
    folder = join(store.root, FOLDER, pool or HERE)
    found = []
    for name in names(folder):
        try:
            found.append(Lesson(**json.loads(read_bytes(join(folder, name)))))
        except (ValueError, TypeError):
            continue
    return sorted(found, key=lambda lesson: lesson.ended)[-MOST:]


def factor(store: Store, pool: str) -> float:
    """How many times as long as planned a step takes there: the median of the lessons; 1 without any."""
    ratios = [lesson.ratio for lesson in lessons(store, pool)]
    return statistics.median(ratios) if ratios else 1.0
