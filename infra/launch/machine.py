"""Facts of this machine: cores, memory, 16-bit arithmetic, and the GPUs that a command may use, by names that
mean the same in every process.
"""

import os
import re
import subprocess
from pathlib import Path

from atelier.engine.config.error import ConfigError


def cores() -> list[int]:
    """The cores that this process may use, by number (containers and taskset included)."""
    try:
        return sorted(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return list(range(os.cpu_count() or 1))


def num_cores() -> int:
    """How many cores this process may use."""
    return len(cores())


def has_half() -> bool:
    """Whether its CPUs have 16-bit arithmetic that is worth using (engine/model/placement.py asks torch the
    same): x86 with AVX-512, ARM with bf16 instructions.
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
ANSWER_S = 60.0  # a driver that is not kept loaded takes seconds
UUID = re.compile(r"GPU-[0-9a-fA-F-]+")
GIVEN = re.compile(r"(GPU|MIG)-[0-9a-zA-Z/-]+|[0-9]+")


def visible(count: int) -> list[str]:
    """Names that CUDA_VISIBLE_DEVICES takes: those that it lists now, else all. A number there counts as
    nvidia-smi does and becomes a UUID; where no nvidia-smi answers, numbers stay, and `count` is how many
    GPUs there are taken to be.
    """
    known = _uuids()
    given = os.environ.get(VISIBLE)
    if given is None:
        return known if known is not None else [str(number) for number in range(count)]
    found: list[str] = []
    for word in given.split(","):
        name = _named(word.strip(), known)
        if not name:  # CUDA, too, takes those before the first that it does not know
            break
        if name in found:
            raise ConfigError(VISIBLE, f"{given!r} names {name} twice", "name every GPU once")
        found.append(name)
    return found


def _named(word: str, known: list[str] | None) -> str:
    """What a word of CUDA_VISIBLE_DEVICES stands for; '' for no GPU."""
    if not GIVEN.fullmatch(word) or known is None or word.startswith("MIG-"):
        return word if GIVEN.fullmatch(word) else ""
    if word.isdecimal():
        return known[int(word)] if int(word) < len(known) else ""
    meant = [uuid for uuid in known if uuid.lower().startswith(word.lower())]
    return meant[0] if len(meant) == 1 else ""


def _uuids() -> list[str] | None:
    """The machine's GPUs in the order of its buses; None when nobody says."""
    try:
        done = subprocess.run(ASK, capture_output=True, text=True, timeout=ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None
    return [line.strip() for line in done.stdout.splitlines() if UUID.fullmatch(line.strip())]
