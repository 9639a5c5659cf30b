"""CPU, memory and GPU use of a gang's processes on this machine, read from /proc and nvidia-smi: the ranks do
nothing for it.
"""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from atelier.infra.launch.gpus import VISIBLE
from atelier.infra.store.lease import Holder, LeaseLog
from atelier.infra.tracking.gpu_stats import GpuStats

EVERY_S = 1.0
PROC = Path("/proc")


class ProcessStats:
    """Statistics of the processes under a gang's supervisor; empty when it runs on another machine."""

    def __init__(self, trajectories: Sequence[str]) -> None:
        """`trajectories`: addresses whose leases name the gang's supervisor."""
        self._trajectories = trajectories
        self._supervisor: Holder | None = None
        self._seconds: dict[int, float] = {}
        self._at = 0.0
        self._used: dict[str, float] = {}
        self._gpus = GpuStats()

    def read(self) -> dict[str, float]:
        """`cpu_cores` busy between the last two samples and `resident_gb` at the last, at most a second ago,
        with those of gpu_stats.py; {} before two samples.
        """
        now = time.monotonic()
        if now - self._at < EVERY_S:
            return self._used
        pids = _under(supervisor.pid) if (supervisor := self._find()) else []
        seconds, resident = {}, 0
        for pid in pids:
            with suppress(OSError):  # the process has just ended
                fields = (PROC / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()
                seconds[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
                resident += int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
        before, since, self._seconds, self._at = self._seconds, now - self._at, seconds, now
        self._used = {}
        if before and seconds:
            used = sum(value - before.get(pid, 0.0) for pid, value in seconds.items())
            self._used = {"cpu_cores": used / since, "resident_gb": resident / 1e9}
            self._used |= self._gpus.read(_devices(pids))
        return self._used

    def _find(self) -> Holder | None:
        if self._supervisor is None or self._supervisor.is_gone():
            self._supervisor = next(filter(None, map(_holder_here, self._trajectories)), None)
        return self._supervisor


def _holder_here(address: str) -> Holder | None:
    """The living process of this machine that holds the lease at `address`."""
    last, me = LeaseLog(address).last(), Holder.me()
    if last is None or last.act != "take":
        return None
    found = last.holder
    return found if found and (found.host, found.boot) == (me.host, me.boot) and not found.is_gone() else None


def _devices(pids: Sequence[int]) -> set[str]:
    """The GPUs that these processes may use, as CUDA_VISIBLE_DEVICES names them: numbers or UUIDs."""
    found = set[str]()
    for pid in pids:
        with suppress(OSError):  # as above
            for word in (PROC / str(pid) / "environ").read_bytes().split(b"\0"):
                if word.startswith(f"{VISIBLE}=".encode()):
                    found |= {name for name in word.decode().partition("=")[2].split(",") if name}
    return found


def _under(pid: int) -> list[int]:
    """`pid` and all processes below it."""
    found, waiting = [], [pid]
    while waiting:
        current = waiting.pop()
        found.append(current)
        for children in (PROC / str(current) / "task").glob("*/children"):
            with suppress(OSError):  # as above
                waiting += [int(word) for word in children.read_text().split()]
    return found
