"""One of four processes that gather weights onto the first; run by test_gather.py. The first writes its
result as JSON.
"""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from atelier.engine.loop.gather import live_weights
from atelier.engine.parallel.gang import Gang

WORLD = 4
LAYOUTS: dict[str, Any] = {
    "replicated": (Replicate(), Replicate()),
    "hybrid": (Replicate(), Shard(0)),
    "rows": (Shard(0), Shard(0)),
    "grid": (Shard(0), Shard(1)),
    "columns": (Shard(1), Replicate()),
}


def numbered(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.arange(torch.Size(shape).numel()).view(shape).to(dtype)


def member(gang: Gang, held: dict[str, Tensor], *, pipeline: int = 1) -> Any:
    axes = SimpleNamespace(ranks=WORLD // pipeline)
    grid = SimpleNamespace(pipeline=pipeline, axes=axes)
    weights = SimpleNamespace(stored=lambda: held)
    return SimpleNamespace(grid=grid, gang=gang, weights=weights)


def gathered(gang: Gang, held: dict[str, Tensor], *, pipeline: int = 1) -> dict[str, Tensor]:
    """All weights on rank 0; on others the check that nothing arrives there."""
    found = {
        name: weight.gather() for name, weight in live_weights(member(gang, held, pipeline=pipeline)).items()
    }
    if gang.is_first:
        return cast(dict[str, Tensor], found)
    assert set(found.values()) <= {None}
    return {}


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return found.keys() == expected.keys() and all(
        found[name].dtype == expected[name].dtype and torch.equal(found[name], expected[name])
        for name in found
    )


def placements(gang: Gang, square: DeviceMesh) -> bool:
    """Every placement on a 2 x 2 mesh, of sizes that do not divide: some ranks have no row."""
    wholes, held = {}, {}
    for label, layout in LAYOUTS.items():
        for shape, dtype in (((7, 9), torch.float32), ((3, 2, 6), torch.float64), ((1, 5), torch.bfloat16)):
            name = f"{label} {shape}"
            wholes[name] = numbered(*shape, dtype=dtype)
            held[name] = distribute_tensor(wholes[name], square, layout)
    return same(gathered(gang, held), wholes)


def nested(gang: Gang, square: DeviceMesh) -> bool:
    """FSDP over tensor parallelism: rows split twice."""
    model = nn.Sequential(nn.Linear(8, 12), nn.Linear(12, 6, bias=False))
    wholes = {name: numbered(*weight.shape) for name, weight in model.named_parameters()}
    model.load_state_dict(wholes)
    parallelize_module(model, square["tensor"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    for layer in model:
        fully_shard(layer, mesh=square["data"])
    return same(gathered(gang, {name: weight.detach() for name, weight in model.named_parameters()}), wholes)


def stages(gang: Gang, square: DeviceMesh) -> bool:
    """Two stages of two ranks: each holds weights of its own, and both one that is tied."""
    mine = gang.rank // 2
    mesh = square["tensor"]
    held = {"tied": distribute_tensor(numbered(5, 4) + 100 * mine, mesh, [Shard(0)], src_data_rank=None)}
    for stage in (0, 1):
        if mine == stage:
            held[f"blocks.{stage}"] = distribute_tensor(
                numbered(4, 3) + stage, mesh, [Shard(1)], src_data_rank=None
            )
            held[f"norm.{stage}"] = numbered(6) - stage
    found = gathered(gang, held, pipeline=2)
    expected = {"tied": numbered(5, 4)}
    for stage in (0, 1):
        expected |= {f"blocks.{stage}": numbered(4, 3) + stage, f"norm.{stage}": numbered(6) - stage}
    return same(found, expected)


def last_only(gang: Gang, square: DeviceMesh) -> bool:
    """A role of the last stage alone: the first rank has nothing of it."""
    held: dict[str, Tensor] = {}
    if gang.rank >= 2:
        held = {"w": distribute_tensor(numbered(5, 4), square["tensor"], [Shard(0)], src_data_rank=None)}
    return same(gathered(gang, held, pipeline=2), {"w": numbered(5, 4)})


def largest(gang: Gang, square: DeviceMesh) -> dict[str, int]:
    """Elements of the largest tensor that each rank makes while sharded weights are gathered."""
    held = {f"w{n}": distribute_tensor(numbered(64, 16), square, (Shard(0), Shard(0))) for n in range(3)}
    made: list[int] = [0]
    empty = torch.empty

    def counting(*shape: Any, **more: Any) -> Tensor:
        made.append(empty(*shape, **more).numel())
        return empty(*shape, **more)

    torch.empty = counting  # also the group's own, a few bytes of names and shapes
    with mock.patch.object(DTensor, "full_tensor", lambda *_, **__: sys.exit("gathers a whole weight")):
        gathered(gang, held)
    torch.empty = empty
    found: list[Any] = [None] * WORLD
    dist.all_gather_object(found, max(made), group=gang.group)
    return {f"rank {rank}": each for rank, each in enumerate(found)}


def messages(gang: Gang, square: DeviceMesh) -> int:
    """What the first rank receives of a weight whose other half two replicas hold."""
    held: dict[str, Tensor] = {"w": distribute_tensor(numbered(4, 4), square, LAYOUTS["hybrid"])}
    received: list[int] = []
    recv = dist.recv

    def counting(tensor: Tensor, **more: Any) -> Any:
        received.append(more["src"])
        return recv(tensor, **more)

    dist.recv = counting
    gathered(gang, held)
    dist.recv = recv
    return len(received)


def main(arguments: list[str]) -> int:
    folder, rank = Path(arguments[0]), int(os.environ["RANK"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=WORLD)
    gang = Gang(rank=rank, world=WORLD, group=dist.group.WORLD)
    square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    scenes = (placements, nested, stages, last_only, messages, largest)
    found = {scene.__name__: scene(gang, square) for scene in scenes}
    if rank == 0:
        (folder / "found.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()
    return 0
