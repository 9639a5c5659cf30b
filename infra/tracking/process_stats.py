"""CPU, memory and GPU use of a gang's processes on this machine, read from /proc and nvidia-smi: the ranks do
nothing for it.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from atelier.infra.launch.gpus import VISIBLE
from atelier.infra.store.lease import Holder, LeaseLog

EVERY_S = 1.0
PROC = Path("/proc")
GPUS_EVERY_S = 5.0  # a call takes up to one core second
ANSWER_S = 10.0
QUERY = ("--query-gpu=index,uuid,utilization.gpu,memory.used", "--format=csv,noheader,nounits")
MIB = 2**20


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
        with those of its GPUs; {} before two samples.
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


class GpuStats:
    """Statistics of some of this machine's GPUs; empty without nvidia-smi."""

    def __init__(self) -> None:
        self._command = shutil.which("nvidia-smi")
        self._at = -GPUS_EVERY_S
        self._used: dict[str, float] = {}

    def read(self, devices: Collection[str]) -> dict[str, float]:
        """`gpu_percent`, the mean use of `devices` (numbers or UUIDs), and `gpu_memory_gb`, the sum of the
        memory in use on them, at most five seconds ago; values that nvidia-smi lacks are left out.
        """
        if not devices or self._command is None:
            return {}
        now = time.monotonic()
        if now - self._at >= GPUS_EVERY_S:
            self._at, self._used = now, _gpu_use(self._command, devices)
        return self._used


def _gpu_use(command: str, devices: Collection[str]) -> dict[str, float]:
    try:
        said = subprocess.run([command, *QUERY], capture_output=True, text=True, timeout=ANSWER_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    use, memory = list[float](), list[float]()
    for line in said.stdout.splitlines():
        index, uuid, percent, used = (*(word.strip() for word in line.split(",")), "", "", "", "")[:4]
        if index in devices or uuid in devices:
            with suppress(ValueError):  # [N/A] for a partitioned GPU
                use.append(float(percent))
            with suppress(ValueError):
                memory.append(float(used) * MIB / 1e9)
    found = {"gpu_percent": sum(use) / len(use)} if use else {}
    return found | ({"gpu_memory_gb": sum(memory)} if memory else {})
