"""Processes become a gang, and plain modules become compiled and sharded ones: from outside, in one explicit
order.

Mesh axes: replicate (whole copies) x shard (ranks that share weights, gradients and optimiser states): FSDP2,
HSDP when replicate > 1.
"""

import ctypes
import json
import os
import shutil
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Literal, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from engine.pulse import Pulse
from engine.spec.error import ConfigError
from engine.spec.parallel import Parallel

Precision = Literal["bf16", "fp32", "fp64"]

RENDEZVOUS = "ATELIER_RENDEZVOUS"
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
# a rank that is silent this long in a collective fails the gang, when no guard found it to hang before
PATIENCE = timedelta(hours=1)
# FLOPs of one rank from which compiling pays: the first compiled step costs 2 to 15 s a role and gains 15 to
# 35 % of the rest
WORTH_COMPILING = {"cpu": 2e13, "cuda": 2e16}


@dataclass(frozen=True)
class Gang:
    """This process's place among the processes of one task. Alone (world 1) it has no process group."""

    rank: int = 0
    world: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    mesh: DeviceMesh | None = None
    group: dist.ProcessGroup | None = None
    background: dist.ProcessGroup | None = None  # gloo, for a thread that works beside training
    pulse: Pulse = field(default_factory=Pulse)

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def aside(self) -> "Gang":
        """The same gang over the group that training's own collectives do not use: for checkpoints that are
        written meanwhile.
        """
        return replace(self, group=self.background)

    def sum(self, tensor: Tensor) -> Tensor:
        """Add `tensor` up over all ranks, in place."""
        if self.world > 1:
            self.pulse.at("collective")
            dist.all_reduce(tensor, group=self.group)
        return tensor

    def barrier(self) -> None:
        if self.world > 1:
            dist.barrier(group=self.group)

    def from_first(self, value: Any) -> Any:
        """Rank 0's `value` (plain JSON data) on every rank."""
        if self.world == 1:
            return value
        data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        size = torch.tensor([len(data)])
        dist.broadcast(size, src=0, group=self.group)
        data = data if self.is_first else torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(data, src=0, group=self.group)
        return json.loads(bytes(data.tolist()))

    def close(self) -> None:
        if self.world > 1:
            dist.destroy_process_group()


def start_gang(layout: Parallel) -> Gang:
    """Join the gang that RANK and WORLD_SIZE describe, meeting at ATELIER_RENDEZVOUS (a file:// URL) or by
    MASTER_ADDR.
    """
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    pulse = Pulse.of_rank(rank)
    device = _device(layout)
    keep_freed_memory()
    torch.set_num_threads(num_threads(layout, world))
    shard = _shard_size(layout, world)
    if world == 1:
        return Gang(device=device, pulse=pulse)
    rendezvous = os.environ.get(RENDEZVOUS, "env://")
    if rendezvous.startswith("file://"):
        os.environ.setdefault(
            "GLOO_SOCKET_IFNAME", "lo"
        )  # one host: nothing of the gang is to be seen from outside
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=rendezvous, rank=rank, world_size=world, timeout=PATIENCE)
    mesh = init_device_mesh(device.type, (layout.replicate, shard), mesh_dim_names=("replicate", "shard"))
    background = cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=PATIENCE))
    return Gang(
        rank=rank,
        world=world,
        device=device,
        mesh=mesh,
        group=dist.group.WORLD,
        background=background,
        pulse=pulse,
    )


def keep_freed_memory() -> None:
    """Let glibc keep what is freed for the next step: else every large tensor is mapped and unmapped again,
    tens of thousands of page faults a step (6 to 20 % of a small model's CPU time). Other C libraries are
    left alone.
    """
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        if hasattr(library, "gnu_get_libc_version"):
            library.mallopt(M_MMAP_THRESHOLD, 1 << 30)
            library.mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)


def _shard_size(layout: Parallel, world: int) -> int:
    shard = world // layout.replicate if layout.shard == "auto" else layout.shard
    if shard * layout.replicate != world:
        raise ConfigError(
            "parallel",
            f"replicate {layout.replicate} x shard {layout.shard} = {shard * layout.replicate}, "
            f"but {world} processes were started",
            f"shard={max(1, world // layout.replicate)} would fit"
            if world % layout.replicate == 0
            else "replicate=1 would fit",
        )
    return shard


def num_threads(layout: Parallel, world: int) -> int:
    """CPU threads of this rank: as given, or an even share of the cores this process may use."""
    if layout.threads != "auto":
        return layout.threads
    here = int(os.environ.get("LOCAL_WORLD_SIZE", str(world)))
    return max(1, len(os.sched_getaffinity(0)) // here)


def _device(layout: Parallel) -> torch.device:
    if layout.device == "cpu" or (layout.device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError(
            "parallel.device",
            "is cuda, but torch sees no such device here",
            "device=auto takes what there is",
        )
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def arithmetic(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Where forward passes run: bf16 autocast over fp32 weights; nothing for fp32 and fp64."""
    return torch.autocast(device.type, dtype=torch.bfloat16) if precision == "bf16" else nullcontext()


def weight_dtype(precision: Precision) -> torch.dtype:
    """Type of the weights that the optimiser moves."""
    return torch.float64 if precision == "fp64" else torch.float32


def compile_mode(layout: Parallel, *, flops: float, device: torch.device) -> Literal["none", "block"]:
    """`auto` resolved for one role: blocks are compiled when a C++ compiler is found and the role's whole
    training, `flops` a rank, pays for it. The number does not depend on where a run resumes or on other
    roles: neither may move a role's bits.
    """
    if layout.compile != "auto":
        return layout.compile
    has_compiler = any(shutil.which(name) for name in ("g++", "clang++"))
    return "block" if has_compiler and flops >= WORTH_COMPILING[device.type] else "none"


def compile_blocks(blocks: Iterable[nn.Module]) -> None:
    """Compile each block's forward in place; the hooks that sharding adds later stay outside the compiled
    code.
    """
    # each role and shape is an entry of the code that all blocks share; past the limit they run eagerly
    torch._dynamo.config.recompile_limit = 128
    for block in blocks:
        block.forward = torch.compile(block.forward, dynamic=False)


def shard(
    root: nn.Module, blocks: Iterable[nn.Module], *, gang: Gang, layout: Parallel, precision: Precision
) -> None:
    """Shard `root` in place over the gang's mesh, block by block and then the rest; alone only the device
    changes.

    Gradients come out as the plain sum over ranks (not the mean): whoever scales the objective by the global
    token count gets the exact global mean whatever the ranks' shares are.
    """
    if gang.mesh is None:
        root.to(gang.device)
        return
    mesh = gang.mesh if layout.replicate > 1 else gang.mesh["shard"]
    policy = MixedPrecisionPolicy(cast_forward_inputs=False)  # a block's rotary angles stay fp32
    if precision == "bf16" and gang.device.type == "cuda":  # on a CPU autocast casts, as in one process alone
        policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False
        )
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=layout.zero == 3)
    # the root holds the head, which students read after its forward: it stays gathered until the backward
    fully_shard(root, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has neither AVG nor PREMUL_SUM


def reshard(root: nn.Module) -> None:
    """Free the gathered weights that a forward without a backward left behind; the next forward gathers the
    current ones.
    """
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def whole(tensor: Tensor) -> Tensor:
    """The full tensor on every rank (a collective when it is sharded)."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # type: ignore[operator]
