"""What trainings really took: step, memory and effective time, of the metric segments that they left."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from atelier.engine.spec.error import DamageError
from atelier.engine.spec.metric import FOLDER, effective, is_segment, merge, time_spent
from atelier.engine.storage import join, names, read_text

MOST_FILES = 40  # of a trajectory that are read for its steps: the newest ones
WARM = 3  # first steps of a training, which are slower


@dataclass(frozen=True)
class Measured:
    """Medians of the steps; memory is the largest of any rank that wrote lines."""

    step_s: float
    tokens_per_s: float
    memory_gb: float
    effective_time: float

    def row(self) -> dict[str, Any]:
        return {key: round(value, 6) for key, value in vars(self).items()}


def measure(urls: Sequence[str]) -> Measured | None:
    """What a chain of trajectories took; None when there are no steps, or a file is damaged: a training that
    is finished does not fail of what is learned from it.
    """
    try:
        return _measured([_files(url) for url in urls])
    except (DamageError, KeyError):
        return None


def _measured(chain: Sequence[list[tuple[str, str]]]) -> Measured | None:
    timings = [line.get("timing", {}) for files in chain for line in merge(files)]
    timings = [timing for timing in timings if "step_s" in timing]
    share = effective(time_spent(files) for files in chain)
    if not timings or share is None:
        return None
    steady = timings[WARM:] or timings
    return Measured(
        step_s=statistics.median(timing["step_s"] for timing in steady),
        tokens_per_s=statistics.median(timing["tokens_per_s"] for timing in steady),
        memory_gb=max(timing.get("memory_gb", 0.0) for timing in timings),
        effective_time=share,
    )


def _files(url: str) -> list[tuple[str, str]]:
    folder = join(url, FOLDER)
    found = sorted(name for name in names(folder) if is_segment(name))
    return [(name, read_text(join(folder, name))) for name in found[-MOST_FILES:]]
