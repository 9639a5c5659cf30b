"""Hardware of this machine: cores, memory, 16-bit arithmetic."""

import os
from pathlib import Path


def cores() -> list[int]:
    """Numbers of the cores that this process may use (limited by containers and taskset)."""
    try:
        return sorted(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return list(range(os.cpu_count() or 1))


def num_cores() -> int:
    """How many cores this process may use."""
    return len(cores())


def has_half() -> bool:
    """Whether the CPUs have 16-bit arithmetic that is worth using: x86 with AVX-512, ARM with bf16
    instructions (engine/model/placement.py checks the same with torch).
    """
    try:
        words = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:  # macOS
        return False
    return {"avx512bw", "avx512dq", "avx512vl"} <= words or "bf16" in words


def memory_gb() -> float:
    """Physical memory, GB."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
