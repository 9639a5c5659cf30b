"""Hardware of this machine: cores, memory, 16-bit arithmetic, and the GPUs that a command may use, by names
that mean the same in every process.
"""

import os
import re
import subprocess
from pathlib import Path

from atelier.engine.config.error import ConfigError


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


VISIBLE = "CUDA_VISIBLE_DEVICES"
ASK = ("nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader")
ANSWER_S = 60.0  # without persistence mode the driver takes seconds to load
UUID = re.compile(r"GPU-[0-9a-fA-F-]+")
GIVEN = re.compile(r"(GPU|MIG)-[0-9a-zA-Z/-]+|[0-9]+")


def visible(count: int) -> list[str]:
    """GPUs as names for CUDA_VISIBLE_DEVICES: those it lists now, else all. Its numbers follow nvidia-smi's
    order and become UUIDs; without nvidia-smi they stay numbers, of `count` GPUs. Raises ConfigError when it
    lists one twice.
    """
    known = _uuids()
    given = os.environ.get(VISIBLE)
    if given is None:
        return known if known is not None else [str(number) for number in range(count)]
    found: list[str] = []
    for word in given.split(","):
        name = _named(word.strip(), known)
        if not name:  # like CUDA: an unknown name ends the list
            break
        if name in found:
            raise ConfigError(VISIBLE, f"{given!r} names {name} twice", "name every GPU once")
        found.append(name)
    return found


def _named(word: str, known: list[str] | None) -> str:
    """The GPU that an entry of CUDA_VISIBLE_DEVICES means; '' for none."""
    if not GIVEN.fullmatch(word) or known is None or word.startswith("MIG-"):
        return word if GIVEN.fullmatch(word) else ""
    if word.isdecimal():
        return known[int(word)] if int(word) < len(known) else ""
    meant = [uuid for uuid in known if uuid.lower().startswith(word.lower())]
    return meant[0] if len(meant) == 1 else ""


def _uuids() -> list[str] | None:
    """UUIDs of the machine's GPUs in bus order; None without nvidia-smi."""
    try:
        done = subprocess.run(ASK, capture_output=True, text=True, timeout=ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None
    return [line.strip() for line in done.stdout.splitlines() if UUID.fullmatch(line.strip())]
