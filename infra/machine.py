"""Facts of this machine that layouts are resolved with."""

import os


def num_cores() -> int:
    """Cores this process may use (containers and taskset included)."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1


def memory_gb() -> float:
    """Physical memory, GB."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
