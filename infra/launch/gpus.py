"""GPUs of this machine: those that the driver reports, and those that a command may use, with names that mean
the same in every process.
"""

import json
import os
import re
import subprocess
from collections import Counter
from pathlib import Path

from atelier.engine.config.device import DEVICES, is_device
from atelier.engine.config.error import ConfigError
from atelier.engine.config.pool import Pool

VISIBLE = "CUDA_VISIBLE_DEVICES"
ASK = ("nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader")
ASK_NAMES = ("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
ASK_AMD = ("rocm-smi", "--showproductname", "--json")
MODULE = Path("/proc/driver/nvidia/gpus")  # for containers with the devices but without nvidia-smi
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
    """The GPU of an entry of CUDA_VISIBLE_DEVICES, or ''."""
    if not GIVEN.fullmatch(word) or known is None or word.startswith("MIG-"):
        return word if GIVEN.fullmatch(word) else ""
    if word.isdecimal():
        return known[int(word)] if int(word) < len(known) else ""
    meant = [uuid for uuid in known if uuid.lower().startswith(word.lower())]
    return meant[0] if len(meant) == 1 else ""


def _uuids() -> list[str] | None:
    """UUIDs of the machine's GPUs in bus order; None without nvidia-smi."""
    said = _said(ASK)
    if said is None:
        return None
    return [line.strip() for line in said.splitlines() if UUID.fullmatch(line.strip())]


def check_gpus(pool: Pool) -> None:
    """Ask the driver. Raises ConfigError if this machine has no GPU of the pool's type."""
    if pool.is_cpu:
        return
    _ = pool.device  # raises ConfigError for an unknown type
    found = gpu_names()
    if not found:
        raise ConfigError(
            "pool.gpu",
            f"is {pool.gpu}, but this machine has no GPU that nvidia-smi or rocm-smi reports",
            "pool=here computes on CPUs; `atelier plan` takes any pool",
        )
    if not any(is_device(pool.gpu, name) for name in found):
        fitting = next((known for known in DEVICES if is_device(known, found[0])), "")
        way_out = f"pool.gpu={fitting}" if fitting else "give the facts of its GPU in a file of conf/pool"
        counted = ", ".join(f"{number} x {name}" for name, number in Counter(found).items())
        raise ConfigError("pool.gpu", f"is {pool.gpu}, but this machine has {counted}", way_out)


def gpu_names() -> list[str]:
    """The driver's names of the machine's GPUs; empty without a driver."""
    if (said := _said(ASK_NAMES)) is not None:
        return [line.strip() for line in said.splitlines() if line.strip()]
    models = [_model(place) for place in sorted(MODULE.glob("*/information"))]
    return [model for model in models if model] or _amd_names(_said(ASK_AMD) or "{}")


def _model(place: Path) -> str:
    """The model in the driver's file about a GPU; '' if it is unreadable."""
    try:
        fields = (line.partition(":") for line in place.read_text().splitlines())
        return next((value.strip() for key, _, value in fields if key == "Model"), "")
    except OSError:
        return ""


def _amd_names(said: str) -> list[str]:
    """Card names from rocm-smi's {"card0": {"Card series": ..., "Card model": ...}}."""
    try:
        cards = json.loads(said)
    except ValueError:
        return []
    return [
        " ".join(str(value) for value in card.values())
        for name, card in cards.items()
        if name.startswith("card") and isinstance(card, dict)
    ]


def _said(command: tuple[str, ...]) -> str | None:
    """Output of a driver's program; None if it is missing, fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else done.stdout
