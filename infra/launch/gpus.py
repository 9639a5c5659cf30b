"""GPUs of this machine: those that the driver reports, and those that a command may use, with names that mean
the same in every process.
"""

import json
import os
import re
import subprocess
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from atelier.engine.config.device import DEVICES, is_device
from atelier.engine.config.error import ConfigError
from atelier.engine.config.pool import Pool
from atelier.infra.launch.locks import holder, shared_folder

VISIBLE = "CUDA_VISIBLE_DEVICES"
ASK = ("nvidia-smi", "--query-gpu=uuid,name,memory.total,memory.used", "--format=csv,noheader,nounits")
ASK_AMD = ("rocm-smi", "--showproductname", "--json")
MODULE = Path("/proc/driver/nvidia/gpus")  # for containers with the devices but without nvidia-smi
ANSWER_S = 60.0  # without persistence mode the driver takes seconds to load
GIVEN = re.compile(r"(GPU|MIG)-[0-9a-zA-Z/-]+|[0-9]+")
LINE = re.compile(r"(?P<uuid>GPU-[0-9a-fA-F-]+), *(?P<name>.*), *(?P<total>[^,]*), *(?P<used>[^,]*)")
MIB = 2**20
BUSY = 0.1  # a program computes on a GPU if more than this share of the memory is in use
NONE_THERE = "this machine has no GPU that nvidia-smi or rocm-smi reports"
ON_CPUS = "pool=cpu computes on CPUs"


@dataclass(frozen=True)
class Gpu:
    """A GPU as nvidia-smi reports it; sizes in GB, 0 = unknown."""

    uuid: str
    name: str
    memory_gb: float
    used_gb: float

    @property
    def is_busy(self) -> bool:
        return self.used_gb > BUSY * self.memory_gb

    @property
    def is_foreign(self) -> bool:
        """Whether a program computes on it that is not Atelier's, whose gangs hold its lock."""
        return self.is_busy and holder(shared_folder() / lock_name(self.uuid)) is None


def lock_name(name: str) -> str:
    """The lock file of a GPU."""
    return f"atelier-gpu-{name.replace('/', '_')}.lock"


def visible(count: int) -> list[str]:
    """GPUs as names for CUDA_VISIBLE_DEVICES: those it lists now, else all. Its numbers follow nvidia-smi's
    order and become UUIDs; without nvidia-smi they stay numbers, of `count` GPUs. Raises ConfigError when it
    lists one twice.
    """
    return _visible(reported(), count)


def _visible(there: list[Gpu] | None, count: int) -> list[str]:
    known = [gpu.uuid for gpu in there] if there is not None else None
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


def offered(pool: Pool, count: int) -> list[str]:
    """The visible GPUs of the pool's type, without those of other programs if `count` remain."""
    there = reported()
    known = {gpu.uuid: gpu for gpu in there or ()}
    found = [
        name for name in _visible(there, count) if name not in known or is_device(pool.gpu, known[name].name)
    ]
    own = [name for name in found if name not in known or not known[name].is_foreign]
    return own if len(own) >= count else found


def reported() -> list[Gpu] | None:
    """The GPUs of this machine in bus order; None without nvidia-smi."""
    said = _said(ASK)
    if said is None:
        return None
    lines = [match for line in said.splitlines() if (match := LINE.fullmatch(line.strip()))]
    return [Gpu(one["uuid"], one["name"].strip(), _gb(one["total"]), _gb(one["used"])) for one in lines]


def _gb(mib: str) -> float:
    with suppress(ValueError):  # [N/A] where GPU and host share their memory
        return float(mib) * MIB / 1e9
    return 0.0


def check_gpus(pool: Pool) -> None:
    """Ask the driver. Raises ConfigError if this machine has no GPU of the pool's type."""
    if pool.is_cpu:
        return
    _ = pool.device  # raises ConfigError for an unknown type
    found = gpu_names()
    if not found:
        way_out = f"{ON_CPUS}; `atelier plan` takes any pool"
        raise ConfigError("pool.gpu", f"is {pool.gpu}, but {NONE_THERE}", way_out)
    if not any(is_device(pool.gpu, name) for name in found):
        fitting = type_of(found[0])
        way_out = f"pool.gpu={fitting}" if fitting else "give the facts of its GPU in a file of conf/pool"
        raise ConfigError("pool.gpu", f"is {pool.gpu}, but this machine has {counted(found)}", way_out)


def counted(names: list[str]) -> str:
    """2 x NVIDIA H200."""
    return ", ".join(f"{number} x {name}" for name, number in Counter(names).items())


def type_of(name: str) -> str:
    """The device type of a driver's name; '' without figures."""
    return next((known for known in DEVICES if is_device(known, name)), "")


def gpu_names() -> list[str]:
    """The driver's names of the machine's GPUs; empty without a driver."""
    if (there := reported()) is not None:
        return [gpu.name for gpu in there]
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
