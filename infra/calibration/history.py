"""Measurements of a pool: calibrated facts, `{root}/pools/<pool>.json`, with GPUs `<pool>.facts.<type>.json`;
step times of trainings, measured and planned, `{root}/pools/<pool>/<trajectory>.json`; and step time, memory
and effective time read from metric segments.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TypedDict

from atelier.engine.config.base import Json
from atelier.engine.config.device import CPU, is_device, plain_name
from atelier.engine.config.document import number_of
from atelier.engine.config.error import DamageError
from atelier.engine.config.metric import FOLDER, effective, is_segment, merge, time_spent
from atelier.engine.config.pool import Pool
from atelier.engine.io.machine import has_half
from atelier.engine.io.storage import join, names, read_object, read_text, remove, write_bytes
from atelier.infra.launch.found_gpus import with_gpus
from atelier.infra.store.store import Store

MOST_FILES = 40  # metric segments read per trajectory: the newest
WARM = 3  # warm-up steps of a training, which are slower


class StepsRow(TypedDict):
    """Measured steps as plain JSON."""

    device: str
    step_s: float
    tokens_per_s: float
    memory_gb: float
    effective_time: float


@dataclass(frozen=True)
class MeasuredSteps:
    """Medians over the steps of `device`, which computed the last one; `memory_gb` is the maximum over ranks
    that wrote lines.
    """

    device: str
    step_s: float
    tokens_per_s: float
    memory_gb: float
    effective_time: float

    def row(self) -> StepsRow:
        return {
            "device": self.device,
            "step_s": round(self.step_s, 6),
            "tokens_per_s": round(self.tokens_per_s, 6),
            "memory_gb": round(self.memory_gb, 6),
            "effective_time": round(self.effective_time, 6),
        }


def measure(urls: Sequence[str]) -> MeasuredSteps | None:
    """Measured steps of a chain of trajectories; None without steps or when a file is damaged, so that a
    finished training does not fail because of its measurement.
    """
    try:
        return _measured([_files(url) for url in urls])
    except (DamageError, KeyError):
        return None


def _measured(chain: Sequence[list[tuple[str, str]]]) -> MeasuredSteps | None:
    lines = [line for files in chain for line in merge(files)]
    device = lines[-1].get("device", CPU) if lines else CPU
    timings = [line.get("timing", {}) for line in lines if line.get("device", CPU) == device]
    timings = [timing for timing in timings if "tokens_per_s" in timing]  # without skipped steps
    share = effective(time_spent(files) for files in chain)
    if not timings or share is None:
        return None
    steady = timings[WARM:] or timings
    return MeasuredSteps(
        device=device,
        step_s=statistics.median(timing["step_s"] for timing in steady),
        tokens_per_s=statistics.median(timing["tokens_per_s"] for timing in steady),
        memory_gb=max(timing.get("memory_gb", 0.0) for timing in timings),
        effective_time=share,
    )


def _files(url: str) -> list[tuple[str, str]]:
    folder = join(url, FOLDER)
    found = sorted(name for name in names(folder) if is_segment(name))
    return [(name, read_text(join(folder, name))) for name in found[-MOST_FILES:]]


POOLS = "pools"
MOST = 20  # number of measurements of a pool that count, the newest
HERE = "here"
TIMES = ("planned_s", "measured_s", "ended")  # numbers of a measurement


@dataclass(frozen=True)
class Measurement:
    """Step time of one training, seconds: planned (uncorrected by measurements) and measured on `device`."""

    task: str
    planned_s: float
    measured_s: float
    ended: float
    device: str = CPU

    @property
    def ratio(self) -> float:
        return self.measured_s / self.planned_s


def record_measurement(store: Store, pool: str, fingerprint: str, measurement: Measurement) -> None:
    """Store a measurement; a repeated one of the same training replaces it."""
    place = join(store.root, POOLS, pool or HERE, f"{fingerprint[:16]}.json")
    write_bytes(place, json.dumps(asdict(measurement), sort_keys=True).encode())


def facts(root: str, pool: Pool) -> Pool:
    """The pool with the GPUs that it finds, and with calibrated facts of that type of device in place of
    auto, of GPUs only in pools of this machine. Raises ConfigError as `with_gpus` does.
    """
    pool = with_half(with_gpus(root, pool))
    if not pool.is_cpu and (pool.paper or pool.launcher != HERE):
        return pool
    try:
        found = read_object(_facts_url(root, pool))
    except (FileNotFoundError, DamageError):
        return pool
    known = {
        name: value
        for name, value in found.items()
        if getattr(pool, name, None) == "auto" and _is_positive(value)
    }
    return pool.model_copy(update=known)


def with_half(pool: Pool) -> Pool:
    """The pool with `half` filled in; its CPUs are assumed to equal this machine's."""
    if pool.half != "auto":
        return pool
    return pool.model_copy(update={"half": has_half() if pool.is_cpu else True})


def keep_facts(root: str, pool: Pool, found: Mapping[str, float]) -> None:
    """Store a pool's calibrated facts and delete the measurements of its devices, which were relative to
    other facts, and unreadable ones.
    """
    write_bytes(_facts_url(root, pool), json.dumps(dict(found), sort_keys=True).encode())
    folder = join(root, POOLS, pool.name or HERE)
    for name in names(folder):
        with suppress(DamageError, FileNotFoundError):
            if not is_device(pool.gpu, str(read_object(join(folder, name)).get("device", CPU))):
                continue
        remove(join(folder, name))


def _facts_url(root: str, pool: Pool) -> str:
    kind = "" if pool.is_cpu else f".facts.{plain_name(pool.gpu)}"
    return join(root, POOLS, f"{pool.name or HERE}{kind}.json")


def measurements(store: Store, pool: Pool) -> list[Measurement]:
    """The newest measurements of a pool's devices, oldest first; unreadable ones are left out."""
    folder = join(store.root, POOLS, pool.name or HERE)
    found = []
    for name in names(folder):
        try:
            stored = read_object(join(folder, name))
        except (DamageError, FileNotFoundError):
            continue
        device = str(stored.pop("device", CPU))
        is_whole = {*stored} == {"task", *TIMES} and all(_is_positive(stored[key]) for key in TIMES)
        if is_whole and is_device(pool.gpu, device):
            planned_s, measured_s, ended = (number_of(stored[key]) for key in TIMES)
            found.append(Measurement(str(stored["task"]), planned_s, measured_s, ended, device))
    return sorted(found, key=lambda measurement: measurement.ended)[-MOST:]


def _is_positive(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e30


def factor(store: Store, pool: Pool) -> float:
    """Measured over planned step time on the pool's devices: the median of its measurements; 1 without."""
    ratios = [measurement.ratio for measurement in measurements(store, pool)]
    return statistics.median(ratios) if ratios else 1.0
