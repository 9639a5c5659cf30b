"""One process of a gang that saves and loads; run by test_gang.py. Writes its results as JSON."""

import json
import os
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from atelier.engine.checkpoint import writer
from atelier.engine.checkpoint.folder import address, steps, verify
from atelier.engine.checkpoint.reader import load, load_full
from atelier.engine.checkpoint.writer import save_async
from atelier.engine.config.error import AtelierError

WORLDS = (1, 2, 4)
TRAJECTORY = "t" * 64


class Scene:
    """What every scenario needs: this rank, meshes and gangs of 1, 2 and 4 ranks, a folder."""

    def __init__(self, folder: str, rank: int) -> None:
        self.folder, self.rank = folder, rank
        self.groups = {n: dist.new_group(list(range(n)), backend="gloo") for n in WORLDS}
        self.meshes = {n: DeviceMesh("cpu", list(range(n))) for n in WORLDS}
        self.square = DeviceMesh("cpu", torch.arange(4).view(2, 2), mesh_dim_names=("data", "tensor"))

    def gang(self, world: int) -> Any:
        return SimpleNamespace(rank=self.rank, world=world, group=self.groups[world] if world > 1 else None)

    def place(self, name: str, step: int) -> str:
        return address(f"{self.folder}/{name}", step)

    def save(self, name: str, step: int, state: dict[str, Any], world: int = 4) -> writer.Pending:
        return save_async(
            self.place(name, step), state, step=step, trajectory=TRAJECTORY, gang=self.gang(world)
        )

    def load(self, name: str, step: int, state: dict[str, Any], world: int = 4) -> dict[Any, Any]:
        return load(self.place(name, step), state, step=step, trajectory=TRAJECTORY, gang=self.gang(world))


def trained(
    mesh: DeviceMesh | None, num_steps: int, seed: int = 0
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A small model with dims that 4 ranks cannot share evenly (one rank has no row), trained a few steps."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(10, 7), nn.Tanh(), nn.Linear(7, 5))
    if mesh is not None and mesh.size() > 1:
        for layer in (model[0], model[2]):
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(max(1, num_steps)):
        optimizer.zero_grad()
        model(torch.ones(3, 10)).square().sum().backward()
        optimizer.step()
    return model, optimizer


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    moments = {name: dict(optimizer.state[weight]) for name, weight in model.named_parameters()}
    return {"model": model.state_dict(), "optim": moments, "role": {"lr": 0.1, "betas": (0.9, 0.95)}}


def whole(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Every tensor of a state, gathered."""
    return {
        name: (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()
        for name, tensor in writer.tensors_of(state).items()
    }


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype and torch.equal(left[name], right[name]) for name in left
    )


def reshard(scene: Scene) -> dict[str, Any]:
    """Save from 1, 2 and 4 FSDP ranks, load each into 1, 2 and 4."""
    result: dict[str, Any] = {}
    for source in WORLDS:
        dist.barrier()
        if scene.rank < source:
            state = state_of(*trained(scene.meshes[source], 3))
            expected = whole(state)
            scene.save("reshard", source, state, source).wait()
            result[f"saved by {source}"] = same(load_full(scene.place("reshard", source)), expected)
        dist.barrier()
        for target in WORLDS:
            if scene.rank < target:
                model, optimizer = trained(scene.meshes[target], 1, seed=7)
                state = state_of(model, optimizer)
                values = scene.load("reshard", source, state, target)
                right = same(whole(state), load_full(scene.place("reshard", source)))
                live = same(whole(state_of(model, optimizer)), whole(state))
                result[f"{source} -> {target}"] = right and live and values == {"role": state["role"]}
    return result


def placements(scene: Scene) -> dict[str, Any]:
    """Any placement on a 2 x 2 mesh, loaded into any other; replicas are written once."""
    layouts = {
        "replicate": (Replicate(), Replicate()),
        "hybrid": (Replicate(), Shard(0)),
        "rows": (Shard(0), Shard(0)),
        "grid": (Shard(0), Shard(1)),
    }
    torch.manual_seed(0)
    full = {"a": torch.randn(7, 9), "b": torch.randint(0, 9, (3, 2, 6)), "c": torch.randn(8, 8).bfloat16()}
    result: dict[str, Any] = {}
    for step, (source, places) in enumerate(layouts.items()):
        state = {k: distribute_tensor(v, scene.square, places) for k, v in full.items()}
        scene.save("placements", step, state).wait()
        folder = Path(scene.place("placements", step))
        result[f"{source} bytes"] = sum(f.stat().st_size for f in folder.glob("*.safetensors"))
        for target, others in layouts.items():
            state = {k: distribute_tensor(torch.zeros_like(v), scene.square, others) for k, v in full.items()}
            scene.load("placements", step, state)
            result[f"{source} -> {target}"] = same(whole(state), full)
    return result


def tensor_parallel(scene: Scene) -> dict[str, Any]:
    """FSDP over tensor parallel: shards of a dim over both axes, strided."""

    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(12, 16, bias=False), nn.Linear(16, 12, bias=False))
        plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
        parallelize_module(model, scene.square["tensor"], plan)
        fully_shard(model, mesh=scene.square["data"])
        return model

    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(12, 16, bias=False), nn.Linear(16, 12, bias=False))
    expected = {f"model.{k}": v.detach() for k, v in plain.state_dict().items()}
    scene.save("tensor", 1, {"model": build(0).state_dict()}).wait()
    again = {"model": build(5).state_dict()}
    scene.load("tensor", 1, again)
    return {
        "saved": same(load_full(scene.place("tensor", 1)), expected),
        "loaded": same(whole(again), expected),
    }


def train_on(scene: Scene) -> dict[str, Any]:
    """Change every weight while rank 1 still writes."""
    state = {"w": distribute_tensor(torch.arange(4096.0).view(64, 64), scene.meshes[4], [Shard(0)])}
    expected = whole(state)
    write = writer.write_tensors

    def slowly(*arguments: Any) -> Any:
        time.sleep(0.3)
        return write(*arguments)

    writer.write_tensors = slowly
    pending = scene.save("train", 1, state)
    early = pending.done()
    changes = 0
    while not pending.done():
        state["w"].to_local().add_(1.0)
        changes += 1
    writer.write_tensors = write
    pending.wait()
    return {"early": early, "changes": changes, "same": same(load_full(scene.place("train", 1)), expected)}


def raised(work: Callable[[], Any]) -> str:
    try:
        work()
    except (AtelierError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def failures(scene: Scene) -> dict[str, Any]:
    """What goes wrong on rank 1 or 2 alone is raised on every rank."""
    state: dict[str, Any] = {"w": distribute_tensor(torch.ones(8, 8), scene.meshes[4], [Shard(0)])}
    scene.save("failures", 1, state).wait()
    write = writer.write_tensors

    def full(place: str, name: str, tensors: dict[str, torch.Tensor]) -> Any:
        if scene.rank == 1:
            raise OSError(28, "No space left on device", f"{place}/{name}")
        return write(place, name, tensors)

    writer.write_tensors = full
    result: dict[str, Any] = {"disk full": raised(scene.save("failures", 2, state).wait)}
    writer.write_tensors = write
    odd = float("nan") if scene.rank == 2 else 0.5
    result["nan"] = raised(scene.save("failures", 3, state | {"loss": odd}).wait)
    result["conflict"] = raised(scene.save("failures", 4, state | {"seed": scene.rank}).wait)
    result["steps"] = steps(f"{scene.folder}/failures")
    result["left"] = sorted(p.name for p in Path(scene.folder, "failures").iterdir())
    result["verify"] = verify(scene.place("failures", 1))
    dist.barrier()
    if scene.rank == 0:
        file = next(Path(scene.place("failures", 1)).glob("rank-0002*"))
        file.write_bytes(file.read_bytes()[:-1] + b"x")
        result["damaged"] = str(file)
    dist.barrier()
    result["damage"] = raised(lambda: scene.load("failures", 1, state))
    lacking = {"v": state["w"]} if scene.rank == 3 else state
    result["lacking"] = raised(lambda: scene.load("failures", 1, lacking))
    return result


def per_rank(scene: Scene) -> dict[str, Any]:
    """Shared values once, per-rank values and tensors each from its rank; two saves in flight."""
    own = torch.full((3,), scene.rank, dtype=torch.uint8)
    state = {"role": {f"rank.{scene.rank}.seed": scene.rank * 10, "rank": {str(scene.rank): own}, "x": 0.1}}
    pending = [scene.save("own", step, state) for step in (1, 2)]
    own.fill_(99)
    for save in pending:
        save.wait()
    mine = {"role": {"rank": {str(scene.rank): torch.zeros(3, dtype=torch.uint8)}}}
    values = scene.load("own", 2, mine)
    return {"values": values, "tensor": mine["role"]["rank"][str(scene.rank)].tolist()}


SCENARIOS = (reshard, placements, tensor_parallel, train_on, failures, per_rank)


def main(given: list[str]) -> int:
    [folder] = given
    warnings.simplefilter("error")
    rank, world = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
    torch.set_num_threads(1)
    how = {"init_method": f"file://{folder}/meet", "rank": rank, "world_size": world}
    dist.init_process_group("gloo", timeout=timedelta(seconds=60), **how)
    scene = Scene(folder, rank)
    result = {scenario.__name__: scenario(scene) for scenario in SCENARIOS}
    Path(folder, f"result-{rank}.json").write_text(json.dumps(result))
    dist.destroy_process_group()
    return 0
