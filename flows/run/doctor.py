"""Checks of the machine: each says that it is ok, or what to do."""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Literal, TypedDict
from uuid import uuid4

from packaging.requirements import Requirement  # prefect and mlflow bring it

from atelier.engine.config.error import AtelierError, ConfigError
from atelier.engine.io import machine
from atelier.engine.io.storage import is_local, join, local_path, remove
from atelier.flows.run.store_check import check_root
from atelier.infra.code.provenance import DISTRIBUTION, INSTALL, has_torch
from atelier.infra.launch.gpus import counted, gpu_names
from atelier.infra.stack.service import check_port, is_running
from atelier.infra.stack.stack import MLFLOW_PORT, PREFECT_PORT, Stack
from atelier.infra.store.conditional_create import create_exclusive
from atelier.infra.store.store import default_root

OLDEST = (3, 11)  # of Python, as in pyproject.toml
LEAST_GB, FEW_GB = 1.0, 10.0  # free on a disk: too little, little
LEAST_MEMORY_GB = 2.0
LEAST_FILES = 256  # open files of a process
TORCH_S, BATCH_S = 120, 20  # patience, seconds
ASK_TORCH = """
import json, torch
found = {"version": torch.__version__, "gpus": torch.cuda.device_count(), "half": False}
for device in ["cpu", *(f"cuda:{n}" for n in range(found["gpus"]))]:
    x = torch.ones(8, 8, device=device)
    assert float((x @ x).sum()) == 512, f"{device} computes wrong products"
if found["gpus"]:
    found["half"] = torch.cuda.is_bf16_supported()
print(json.dumps(found))
"""
SYSTEMS = (("slurm", "sbatch", ("sinfo", "--version")), ("kubernetes", "kubectl", ("kubectl", "version")))


class CheckRow(TypedDict):
    """A check as `atelier doctor --json` prints it. `note` = it works, with a limit; `to_do` is empty if
    there is nothing to do.
    """

    check: str
    state: Literal["ok", "note", "broken"]
    found: str
    to_do: str


def ok(check: str, found: str) -> CheckRow:
    return {"check": check, "state": "ok", "found": found, "to_do": ""}


def note(check: str, found: str, to_do: str) -> CheckRow:
    return {"check": check, "state": "note", "found": found, "to_do": to_do}


def broken(check: str, found: str, to_do: str) -> CheckRow:
    return {"check": check, "state": "broken", "found": found, "to_do": to_do}


def check_python(version: tuple[int, ...] = sys.version_info[:3]) -> CheckRow:
    text = ".".join(map(str, version))
    if version[:2] >= OLDEST:
        return ok("python", f"{text}, {sys.executable}")
    return broken("python", text, f"install Python {'.'.join(map(str, OLDEST))} or newer, and Atelier in it")


def check_torch() -> Iterator[CheckRow]:
    """torch, its devices and their 16-bit arithmetic, in another process: a broken driver may end it."""
    if not has_torch():
        yield note(
            "torch", "none: this machine plans, submits, and prepares data", f"to train here: {INSTALL}"
        )
        return
    there = gpu_names()
    try:
        done = subprocess.run(
            [sys.executable, "-c", ASK_TORCH], capture_output=True, text=True, timeout=TORCH_S, check=False
        )
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    except subprocess.TimeoutExpired:
        done, last = None, f"no answer in {TORCH_S} s"
    if done is None or done.returncode:
        way_out = f"{INSTALL} (on GPUs: the build of torch for the driver's CUDA, see nvidia-smi)"
        yield broken("torch", f"it cannot be used: {last}", way_out)
        return
    found = json.loads(done.stdout.splitlines()[-1])
    yield ok("torch", f"{found['version']}, computes on cpu")
    if there and not found["gpus"]:
        way_out = "install the build of torch for the driver's CUDA; check CUDA_VISIBLE_DEVICES"
        yield broken("device", f"the driver has {counted(there)}, torch sees none", way_out)
    else:
        yield ok("device", counted(there) if found["gpus"] else "cpu; no GPU here")
    yield check_half(has_gpu=bool(found["gpus"]), gpu_half=bool(found["half"]))


def check_half(*, has_gpu: bool = False, gpu_half: bool = False) -> CheckRow:
    name = "16-bit arithmetic"
    if (has_gpu and gpu_half) or (not has_gpu and machine.has_half()):
        return ok(name, "bf16")
    whose = "these GPUs have" if has_gpu else "these CPUs have"
    return note(
        name, f"{whose} none: bf16 is computed in float32, with more memory", "train.precision=float32"
    )


def check_ports(root: str) -> Iterator[CheckRow]:
    """The ports of `atelier up`; one that its own server has is ok."""
    stack = Stack(root)
    for name, port in (("prefect", PREFECT_PORT), ("mlflow", MLFLOW_PORT)):
        entry = stack.state.get(name, {})
        if is_running(entry):
            yield ok(f"port of {name}", f"the stack's server runs at {entry.get('url', '')}")
            continue
        try:
            check_port(name, port)
            yield ok(f"port of {name}", f"{port} is free")
        except ConfigError as error:
            yield broken(f"port of {name}", error.problem, f"atelier up --{name}-port=<another>")


def check_disk(folder: Path) -> CheckRow:
    there = next(place for place in (folder, *folder.parents) if place.exists())
    free = shutil.disk_usage(there).free / 1e9
    text, way_out = (
        f"{free:.1f} GB free at {there}",
        "free some (`atelier gc`), or set ATELIER_ROOT elsewhere",
    )
    if free < LEAST_GB:
        return broken("disk", text, way_out)
    return note("disk", text, way_out) if free < FEW_GB else ok("disk", text)


def check_store(root: str) -> CheckRow:
    """Create a file exclusively in the store, and see a second creation refused."""
    probe = join(root, f".tmp-doctor-{uuid4().hex[:8]}")
    is_new = is_local(root) and not local_path(root).exists()
    try:
        check_root(will_write=True)
        is_first, is_second = create_exclusive(probe, b"first"), create_exclusive(probe, b"second")
        remove(probe)
        if is_new:
            with suppress(OSError):  # leave no empty store behind
                local_path(root).rmdir()
    except AtelierError as error:
        way_out = error.way_out if isinstance(error, ConfigError) else "set ATELIER_ROOT to another place"
        problem = error.problem if isinstance(error, ConfigError) else str(error)
        return broken("store", f"{root}: {problem}", way_out)
    except OSError as error:
        return broken(
            "store", f"{root}: {(error.strerror or str(error)).lower()}", "set ATELIER_ROOT elsewhere"
        )
    if is_first and not is_second:
        return ok("store", f"{root}: files are created exclusively")
    found = f"{root}: a file was created twice, so that two gangs could train one model"
    return broken("store", found, "use a local disk, NFS 4 or S3; or set ATELIER_LEASES to a database")


def check_batch() -> Iterator[CheckRow]:
    """Batch systems that this machine reaches."""
    there = [one for one in SYSTEMS if shutil.which(one[1])]
    if not there:
        yield ok("batch systems", "none here; runs use this machine")
    for name, program, words in there:
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=BATCH_S, check=False)
            said = (done.stderr or done.stdout).strip().splitlines()
            is_well = done.returncode == 0
        except (OSError, subprocess.TimeoutExpired) as error:
            said, is_well = [str(error)], False
        if is_well:
            yield ok(name, f"{program} answers")
        else:
            way_out = f"`{' '.join(words)}` must work here before a pool with launcher={name} does"
            yield note(name, said[-1] if said else f"{program} fails", way_out)


def check_versions(required: Sequence[str] | None = None) -> CheckRow:
    """Installed libraries against those that Atelier requires."""
    if required is None:
        try:
            required = metadata.requires(DISTRIBUTION) or []
        except metadata.PackageNotFoundError:
            return note(
                "versions", f"{DISTRIBUTION} is not installed: a checkout", "pip install -e . checks them"
            )
    given = {"extra": "train" if has_torch() else ""}
    every = [Requirement(text) for text in required]
    wanted = [one for one in every if one.marker is None or one.marker.evaluate(given)]
    there = machine.versions(*(one.name for one in wanted))
    wrong = [
        one for one in wanted if not there[one.name] or not one.specifier.contains(there[one.name], True)
    ]
    if not wrong:
        return ok("versions", f"{len(wanted)} libraries as required")
    texts = [f"{one.name} is {there[one.name] or 'missing'}, {one.specifier} is required" for one in wrong]
    names = " ".join(f"'{one.name}{one.specifier}'" for one in wrong)
    return broken("versions", "; ".join(texts), f"pip install {names}")


def check_limits(root: Path = machine.ROOT) -> Iterator[CheckRow]:
    """The limits of a container or a session: cores, memory, open files."""
    cores, whole = machine.num_cores(root), machine.all_cores()
    memory, all_memory = machine.memory_gb(root), machine.memory_gb(Path(os.devnull))
    text = f"{cores} of {whole} cores, {memory:.1f} of {all_memory:.1f} GB of memory"
    if memory < LEAST_MEMORY_GB:
        yield broken("limits", text, f"give the container {LEAST_MEMORY_GB:g} GB or more: docker --memory=4g")
    else:
        yield ok("limits", text)
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= files < LEAST_FILES:
        yield broken("open files", f"{files} in each process (most {most})", f"ulimit -n {4 * LEAST_FILES}")
    else:
        yield ok("open files", f"{files} in each process" if files >= 0 else "no limit")


def checks() -> Iterator[CheckRow]:
    """All checks, in order."""
    root = default_root()
    folders = [Path(tempfile.gettempdir()), *([local_path(root)] if is_local(root) else [])]
    yield check_python()
    yield from check_torch()
    yield from check_ports(root)
    yield from map(check_disk, folders)
    yield check_store(root)
    yield from check_batch()
    yield check_versions()
    yield from check_limits()
