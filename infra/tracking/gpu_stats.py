"""Use and memory of GPUs, from nvidia-smi."""

import shutil
import subprocess
import time
from collections.abc import Collection
from contextlib import suppress

EVERY_S = 5.0  # a call takes up to a second of a core
ANSWER_S = 10.0
QUERY = ("--query-gpu=index,uuid,utilization.gpu,memory.used", "--format=csv,noheader,nounits")
MIB = 2**20


class GpuStats:
    """Statistics of some of this machine's GPUs; empty without nvidia-smi."""

    def __init__(self) -> None:
        self._command = shutil.which("nvidia-smi")
        self._at = -EVERY_S
        self._used: dict[str, float] = {}

    def read(self, devices: Collection[str]) -> dict[str, float]:
        """`gpu_percent`, the mean use of `devices` (numbers or UUIDs), and `gpu_memory_gb`, the sum of the
        memory in use on them, at most five seconds ago; what nvidia-smi does not tell is left out.
        """
        if not devices or self._command is None:
            return {}
        now = time.monotonic()
        if now - self._at >= EVERY_S:
            self._at, self._used = now, _read(self._command, devices)
        return self._used


def _read(command: str, devices: Collection[str]) -> dict[str, float]:
    try:
        said = subprocess.run([command, *QUERY], capture_output=True, text=True, timeout=ANSWER_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    use, memory = list[float](), list[float]()
    for line in said.stdout.splitlines():
        index, uuid, percent, used = (*(word.strip() for word in line.split(",")), "", "", "", "")[:4]
        if index in devices or uuid in devices:
            with suppress(ValueError):  # [N/A], of a GPU that is split
                use.append(float(percent))
            with suppress(ValueError):
                memory.append(float(used) * MIB / 1e9)
    found = {"gpu_percent": sum(use) / len(use)} if use else {}
    return found | ({"gpu_memory_gb": sum(memory)} if memory else {})
