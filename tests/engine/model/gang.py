"""One of two processes that initialise a model whose weights are sharded; run by test_load.py."""

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from atelier.engine.config.model.gpt import GPT
from atelier.engine.model.load import build, first_values, initialise
from atelier.engine.model.placement import fill


def main(given: list[str]) -> int:
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{given[0]}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    spec = GPT(num_layers=1, hidden=24, num_heads=2, vocab=33)
    whole = build(spec)
    initialise(whole, seed=5, name="role")
    with torch.device("meta"):
        sharded = build(spec)
    fully_shard(sharded, mesh=mesh)
    sharded.to_empty(device="cpu")
    for name, weight in sharded.named_parameters():
        fill(weight, lambda name=name, shape=weight.shape: first_values(sharded, name, shape, 5, "role"))
    expected = dict(whole.named_parameters())
    for name, weight in sharded.named_parameters():
        assert isinstance(weight, DTensor) and torch.equal(weight.full_tensor(), expected[name]), name
    dist.destroy_process_group()
    return 0
