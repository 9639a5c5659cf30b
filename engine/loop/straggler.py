"""Detect stragglers (ranks that compute longer than others) and the peak memory of the fullest rank. The
numbers travel in an all-reduce that every step makes anyway.

A rank's own time is its training thread's runnable time (on a core or waiting for one) plus its wait for
data, without its wait in collectives, where it sleeps. On a GPU this is only the host's part of a step.
"""

import resource
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from atelier.engine.parallel.gang import Gang

KEEP = 0.9  # decay of the average per step
SETTLED = 10  # steps before a rank is reported
_SCHEDULER = Path("/proc/thread-self/schedstat")  # ns on a core, ns waiting for one, slices


def runnable_s() -> float:
    """Seconds that this thread was runnable; its CPU time if the system does not report them."""
    try:
        running, waiting, _ = _SCHEDULER.read_text().split()
    except (OSError, ValueError):
        return time.thread_time()
    return (int(running) + int(waiting)) / 1e9


def peak_bytes(device: torch.device) -> int:
    """Peak memory of this rank so far: of the device, or of the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def idle_share(times: Sequence[float]) -> float:
    """The share of all ranks' time spent waiting for the slowest: 1 - mean / max."""
    return 1 - sum(times) / len(times) / max(times)


class StragglerDetector:
    """Smoothed own times of all ranks and their peak memory; equal on every rank."""

    def __init__(self, gang: Gang, factor: float) -> None:
        self._gang, self._factor = gang, factor
        self._average_s = [0.0] * gang.world
        self._num_heard = 0
        self._own_us = 0
        self._fullest = 0
        self._began = 0.0
        self._named = -1

    def begin(self) -> None:
        if self._gang.world > 1:
            self._began = runnable_s()

    def end(self, wait_s: float, *, is_usual: bool) -> None:
        """End a step, with `wait_s` seconds of waiting for data. A step that compiled does not count."""
        if self._gang.world > 1:
            self._own_us = round((runnable_s() - self._began + wait_s) * 1e6) if is_usual else 0

    def tell(self) -> list[int]:
        """Microseconds of the previous step by rank, then peak bytes; 0 for all other ranks. To be summed
        over ranks.
        """
        told = [0] * (2 * self._gang.world)
        told[self._gang.rank :: self._gang.world] = self._own_us, peak_bytes(self._gang.device)
        return told

    def slow_rank(self, told: list[int]) -> str:
        """Take the summed numbers of all ranks; returns a warning if a rank has become slow, else ''."""
        times_us, peaks = told[: self._gang.world], told[self._gang.world :]
        self._fullest = max(peaks)
        if not all(times_us) or self._gang.world == 1:
            return ""
        self._num_heard += 1
        keep = KEEP if self._num_heard > 1 else 0.0
        pairs = zip(self._average_s, times_us, strict=True)
        self._average_s = [keep * average + (1 - keep) * us / 1e6 for average, us in pairs]
        slowest, ratio = self._slowest()
        is_slow = bool(self._factor) and self._num_heard >= SETTLED and ratio > self._factor
        was, self._named = self._named, slowest if is_slow else -1
        if not is_slow or was == slowest:
            return ""
        longest, usual = self._average_s[slowest], self._average_s[slowest] / ratio
        return (
            f"rank {slowest} takes {ratio:.1f} times as long per step as the median rank "
            f"({longest:.3f} s, {usual:.3f} s): all wait for it"
        )

    def timing(self) -> dict[str, float]:
        """Peak memory of the fullest rank (other ranks as of the step's beginning); the slowest rank, its
        time as a multiple of the median, and the share of all ranks' time spent waiting for it.
        """
        memory = {"memory_gb": max(self._fullest, peak_bytes(self._gang.device)) / 1e9}
        if not self._num_heard:
            return memory
        slowest, ratio = self._slowest()
        idle = idle_share(self._average_s)
        return memory | {"slowest_rank": float(slowest), "slowest_ratio": ratio, "idle_share": idle}

    def _slowest(self) -> tuple[int, float]:
        times = sorted(self._average_s)
        median = times[(len(times) - 1) // 2]  # of two the faster, so that one of two can be twice as slow
        return self._average_s.index(times[-1]), times[-1] / max(median, 1e-9)
