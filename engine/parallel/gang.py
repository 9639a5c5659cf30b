"""The gang of one task (torch.distributed's world): rendezvous, process groups, collectives over all ranks;
CPU threads, malloc and kernel caches of this rank.
"""

import ctypes
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore  # torch.distributed does not export it
from torch.distributed.device_mesh import DeviceMesh
from torch.profiler import record_function

from atelier.engine.config.base import Json
from atelier.engine.config.device import is_device
from atelier.engine.config.error import ConfigError
from atelier.engine.config.parallel import Parallel
from atelier.engine.io.heartbeat import Heartbeat
from atelier.engine.io.local_url import FILE, path_of
from atelier.engine.io.machine import num_cores

RENDEZVOUS = "ATELIER_RENDEZVOUS"
KERNEL_CACHE, KERNELS = "LRU_CACHE_CAPACITY", 64
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
CUBLAS_WORKSPACE, WORKSPACES = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"  # the values that torch asks for
# timeout of collectives: fails the gang if no hang detector did before
PATIENCE = timedelta(hours=1)

LEASH = "ATELIER_RANK_ENDS_WITH_INPUT"
OTHERS_END_S = 3.0  # for ranks to end once one has
WATCH_S = 0.2

OFF: AbstractContextManager[None] = nullcontext()
MARK = "atelier: "  # prefix of region names in a profiler's trace

Value = TypeVar("Value", bound=Json)


class Regions:
    """`with regions("forward"):` names a region in a profiler's trace; without profiler it does nothing."""

    def __init__(self) -> None:
        self.is_on = False

    def __call__(self, name: str) -> AbstractContextManager[object]:
        return record_function(MARK + name) if self.is_on else OFF


@dataclass(frozen=True)
class Gang:
    """This process's rank in the gang of one task. A single process (world 1) has no process group."""

    rank: int = 0
    world: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    group: dist.ProcessGroup | None = None
    per_node: int = 1  # ranks per node
    background: dist.ProcessGroup | None = None  # gloo, for a background thread
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    regions: Regions = field(default_factory=Regions, compare=False)
    meshes: dict[tuple[int, ...], DeviceMesh] = field(default_factory=dict, compare=False)  # by sizes of axes

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def aside(self) -> "Gang":
        """The same gang with a second process group, which training's collectives do not use: for background
        checkpoints.
        """
        return replace(self, group=self.background)

    @cached_property
    def device_name(self) -> str:
        """cpu, or the driver's name of this rank's GPU."""
        return "cpu" if self.device.type == "cpu" else torch.cuda.get_device_name(self.device)

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum `tensor` over all ranks, in place."""
        if self.world > 1:
            self.heartbeat.at("collective")
            dist.all_reduce(tensor, group=self.group)
        return tensor

    def barrier(self) -> None:
        if self.world > 1:
            dist.barrier(group=self.group)

    def from_first(self, value: Value) -> Value:
        """Broadcast rank 0's `value`, plain JSON data, to every rank; returns it."""
        if self.world == 1:
            return value
        return json.loads(broadcast_bytes(json.dumps(value).encode() if self.is_first else None, self.group))

    def close(self) -> None:
        if self.world > 1:
            dist.destroy_process_group()


def broadcast_bytes(data: bytes | None, group: dist.ProcessGroup | None) -> bytes:
    """Rank 0's bytes on every rank of a group that has gloo; the others give None."""
    size = torch.tensor([0 if data is None else len(data)])
    dist.broadcast(size, src=0, group=group)
    found = torch.empty(int(size), dtype=torch.uint8)
    if data:
        found = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    dist.broadcast(found, src=0, group=group)
    return found.numpy().tobytes()


@contextmanager
def other_ranks(module: str, path: str, ranks: int) -> Iterator[None]:
    """Run `python -m module path` as ranks 1 .. `ranks` - 1 beside this process, rank 0, and end them with
    it. When one fails, its last words become those of this process, which ends too. Nothing happens in a
    process that is already a rank of a gang. Raises ConfigError if the machine has fewer GPUs.
    """
    if ranks == 1 or "WORLD_SIZE" in os.environ:
        yield
        return
    if 0 < torch.cuda.device_count() < ranks:
        raise ConfigError(
            "split", f"{ranks} ranks, but torch sees {torch.cuda.device_count()} GPUs here", "use fewer ranks"
        )
    with tempfile.TemporaryDirectory(prefix="atelier-ranks-") as folder:
        os.environ |= {
            "RANK": "0",
            "LOCAL_RANK": "0",
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
            RENDEZVOUS: (Path(folder) / "meeting").as_uri(),
        }
        others: dict[Path, subprocess.Popen[bytes]] = {}
        is_over = threading.Event()
        try:
            for rank in range(1, ranks):
                said = Path(folder) / f"rank-{rank}.txt"
                with said.open("wb") as out:
                    others[said] = subprocess.Popen(
                        [sys.executable, "-m", module, path],
                        stdin=subprocess.PIPE,
                        stdout=out,
                        stderr=out,
                        env=os.environ | {"RANK": str(rank), "LOCAL_RANK": str(rank), LEASH: "1"},
                    )
            threading.Thread(target=_watch, args=(others, is_over), daemon=True).start()
            yield
            deadline = time.monotonic() + OTHERS_END_S
            for process in others.values():
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))
        finally:
            is_over.set()
            for process in others.values():
                process.kill()
                process.wait()


def _end_with_parent() -> None:
    """End this process when its standard input ends: with rank 0, even if that is killed."""
    sys.stdin.buffer.read()
    os._exit(1)


def _watch(others: Mapping[Path, subprocess.Popen[bytes]], is_over: threading.Event) -> None:
    """End this process with the last words of a rank that fails, unless this one's own come first."""
    while not is_over.wait(WATCH_S):
        for said, process in others.items():
            if process.poll() and not is_over.wait(OTHERS_END_S):
                last = said.read_text(errors="replace").strip().splitlines()[-1:]
                print(*last, file=sys.stdout if last and last[0].startswith("{") else sys.stderr, flush=True)
                for each in others.values():
                    each.kill()
                os._exit(process.returncode if process.returncode > 0 else 1)


def start_gang(layout: Parallel, gpu: str = "") -> Gang:
    """Join the gang described by RANK and WORLD_SIZE, by a rendezvous at ATELIER_RENDEZVOUS (a file:// URL)
    or MASTER_ADDR. `gpu`: the pool's device type.

    Raises ConfigError if the layout does not fit the number of ranks, or if it needs a GPU and there is none
    or one of another type.
    """
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    heartbeat = Heartbeat.of_rank(rank)
    if os.environ.pop(LEASH, ""):
        threading.Thread(target=_end_with_parent, daemon=True).start()
    device = _device(layout, gpu)
    keep_freed_memory()
    bound_kernel_cache()
    if layout.deterministic:
        use_deterministic_kernels()
    torch.set_num_threads(num_threads(layout, world))
    layout.for_world(world)
    if world == 1:
        return Gang(device=device, heartbeat=heartbeat)
    rendezvous = os.environ.get(RENDEZVOUS, "env://")
    store = None
    if rendezvous.startswith(FILE):
        # one host: the gang must not be reachable from outside, whatever interface its site uses
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        store = FileStore(str(path_of(rendezvous)), world)  # torch would cut the URL at # and ?
        store.set_timeout(PATIENCE)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    method = None if store is not None else rendezvous
    dist.init_process_group(
        backend, init_method=method, store=store, rank=rank, world_size=world, timeout=PATIENCE
    )
    here = torch.tensor([ranks_here(world), -ranks_here(world)])
    dist.all_reduce(here, dist.ReduceOp.MAX)
    most, least = here.tolist()
    background = cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=PATIENCE))
    return Gang(
        rank=rank,
        world=world,
        device=device,
        group=dist.group.WORLD,
        per_node=most if most == -least else world,  # unequal nodes count as one
        background=background,
        heartbeat=heartbeat,
    )


def keep_freed_memory() -> None:
    """Make glibc keep freed memory for the next step; otherwise every large tensor is mapped and unmapped
    again, with tens of thousands of page faults per step (6 to 20 % of a small model's CPU time). Does
    nothing with other C libraries.
    """
    if library := _glibc():
        library.mallopt(M_MMAP_THRESHOLD, 1 << 30)
        library.mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)


def return_freed_memory() -> None:
    """Make glibc return kept memory, before allocations of other sizes."""
    if library := _glibc():
        library.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    with suppress(OSError):
        library = ctypes.CDLL(None)
        return library if hasattr(library, "gnu_get_libc_version") else None
    return None


def bound_kernel_cache() -> None:
    """Bound torch's cache of oneDNN primitives, unless the environment does. oneDNN's own cache of 1024
    kernels saves the time: `titan experiment=tiny` uses 750, and with room for 64 it took 1.3 times as long.
    """
    os.environ.setdefault(KERNEL_CACHE, str(KERNELS))


def use_deterministic_kernels() -> None:
    """Use only kernels whose results do not depend on timing; an operation that has none on this device
    raises RuntimeError with its name.
    """
    os.environ.setdefault(CUBLAS_WORKSPACE, WORKSPACES)  # read when a process first uses cuBLAS
    torch.use_deterministic_algorithms(True)
    cast(Any, torch.utils.deterministic).fill_uninitialized_memory = False


def num_threads(layout: Parallel, world: int) -> int:
    """CPU threads of this rank: as configured, or an even share of this process's cores."""
    if layout.threads != "auto":
        return layout.threads
    return max(1, num_cores() // ranks_here(world))


def ranks_here(world: int) -> int:
    """Ranks of the gang on this node."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", str(world)))


def _device(layout: Parallel, gpu: str) -> torch.device:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")  # such as that the driver is too old
        has_gpu = torch.cuda.is_available()
    if layout.device == "cpu" or (layout.device == "auto" and not has_gpu):
        return torch.device("cpu")
    host = socket.gethostname()
    if not has_gpu:
        asked = f"the pool has {gpu}" if gpu else "is cuda"
        cuda = torch.version.cuda or torch.version.hip
        why = next((f" ({str(one.message).splitlines()[0]})" for one in said), "") if cuda else ""
        way_out = "" if why or cuda else "install a torch build for its GPUs; "
        if "too old" in why:
            way_out = f"update the GPU's driver for CUDA {cuda}; "
        raise ConfigError(
            "pool.gpu" if gpu else "parallel.device",
            f"{asked}, but torch {torch.__version__} sees no GPU on {host}{why}",
            f"{way_out}pool=cpu computes on CPUs",
        )
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    if gpu and not is_device(gpu, name := torch.cuda.get_device_name(device)):
        raise ConfigError("pool.gpu", f"is {gpu}, but {host} has {name}", "give the GPU that computes")
    torch.cuda.set_device(device)
    return device
