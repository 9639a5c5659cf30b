"""Planned memory of a training against the measured one."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from atelier.engine.config.base import parse
from atelier.engine.config.memory import ProductKeyMemory
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.pool import Pool
from atelier.engine.config.role import Role
from atelier.engine.config.train import Train
from atelier.engine.model.attention import additive, rope_angles
from atelier.engine.model.transformer import Block
from atelier.engine.plan.estimate import Setting, machine_of
from atelier.engine.plan.memory import Memory, peak_memory

ROWS = 3  # so that no activation has the shape of a weight


def kept(spec: GPT, sequence: int) -> int:
    """Bytes that a block keeps for its backward pass, besides weights, their copies and what all share."""
    block = Block(spec)
    x = torch.randn(ROWS, sequence, spec.hidden, requires_grad=True)
    mask = additive(torch.ones(ROWS, 1, sequence, sequence, dtype=torch.bool).tril(), torch.bfloat16)
    rope = rope_angles(torch.arange(sequence).expand(ROWS, -1), spec.head_width, 1e4, torch.float32)
    shapes = {tuple(weight.shape[-2:]) for weight in block.parameters()}
    shapes |= {shape[::-1] for shape in shapes} | {tuple(weight.shape) for weight in block.parameters()}
    shared = {each.untyped_storage().data_ptr() for each in (mask, rope)}
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in shared and tuple(tensor.shape) not in shapes:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x), torch.autocast("cpu", torch.bfloat16):
        block(x, rope, mask)
    return sum(sizes.values())


def planned(spec: GPT, sequence: int, rows: int = ROWS, **layout: Any) -> float:
    train = Train(steps=1, global_batch=ROWS, micro_batch=rows, sequence=sequence)
    return memory(spec, train, Pool(), **layout).activations


def memory(spec: GPT, train: Train, pool: Pool, **layout: Any) -> Memory:
    role = parse(
        Role,
        {
            "model": spec.model_dump(),
            "objective": {"lm": {"kind": "lm"}},
            "optim": {"kind": "adamw", "lr": 1e-3, "schedule": {"kind": "constant"}},
        },
        "role",
    )
    parallel = Parallel(shard=1, threads=1, **layout)
    setting = Setting.of(role, train, pool, 0)
    machine = machine_of(setting.pool, setting.device, parallel, train.precision)
    return peak_memory(setting.model_shape, train, parallel, machine)


MEMORIES = {"memory": ProductKeyMemory(blocks=(0, 1, 2, 3), keys=50, heads=4, per_token=30, width=48)}


@pytest.mark.parametrize(
    ("more", "sequence"),
    [
        ({}, 128),
        ({"norm": "layer", "mlp": "gelu"}, 128),
        ({"norm": "layer"}, 256),
        ({"num_experts": 4, "experts_per_token": 2, "ffn": 128}, 128),
        ({}, 512),
        ({}, 1024),
        (MEMORIES, 128),
    ],
)
def test_plans_know_what_a_block_keeps(more: dict[str, Any], sequence: int) -> None:
    spec = GPT(num_layers=4, hidden=128, num_heads=4, vocab=256, **more)
    assert planned(spec, sequence) / 4 == pytest.approx(kept(spec, sequence), rel=0.05)


def test_recomputing_keeps_a_blocks_input() -> None:
    spec = GPT(num_layers=40, hidden=128, num_heads=4, vocab=256)
    every = planned(spec, 128, recompute="full", rows=1)
    assert every == pytest.approx(40 * 4 * 128 * 128)


@pytest.mark.parametrize(("every", "copies"), [(5, 1), ("auto", 1), (10, 0)])
def test_a_checkpoint_on_the_way_is_a_copy_of_the_states_where_training_has_them(
    every: Any, copies: int
) -> None:
    """The last one is written when all else is gone; a GPU's is copied to its host."""
    spec = GPT(num_layers=2, hidden=128, num_heads=4, vocab=256)
    train = Train(steps=10, global_batch=ROWS, sequence=128, checkpoint_every=every)
    here = memory(spec, train, Pool())
    assert here.checkpoint == copies * here.states == copies * 12 * spec.num_params()
    assert memory(spec, train, Pool(gpu="h100")).checkpoint == 0


@pytest.mark.parametrize("blocks", [(0,), (1, 3), (0, 1, 2, 3)])
def test_states_have_every_memory_once_wherever_it_is(blocks: tuple[int, ...]) -> None:
    """Of value rows a rank of the axis tensor has its columns."""
    sizes = MEMORIES["memory"].model_copy(update={"blocks": blocks})
    spec = GPT(num_layers=4, hidden=128, num_heads=4, vocab=256, memory=sizes)
    train = Train(steps=1, global_batch=ROWS, sequence=128)
    whole = memory(spec, train, Pool())
    assert whole.states == pytest.approx(12 * spec.num_params())
    split = memory(spec, train, Pool(), tensor=2)
    assert split.states == pytest.approx(whole.states / 2)


@pytest.mark.parametrize(
    ("link", "kept"),
    [
        ({}, 1),
        ({"outer": {"kind": "nesterov", "lr": 0.7, "momentum": 0.9}}, 2),
        ({"codec": {"kind": "int4"}}, 2),
        ({"codec": {"kind": "int4"}, "feedback": False}, 1),
        ({"codec": {"kind": "int4"}, "delay": 3, "fragments": 2}, 3),
    ],
)
def test_several_sites_keep_four_bytes_a_weight_for_each_thing_that_outer_steps_need(
    link: dict[str, Any], kept: int
) -> None:
    spec = GPT(num_layers=2, hidden=64, num_heads=4, vocab=100)
    sizes: dict[str, Any] = {"steps": 100, "global_batch": 4, "micro_batch": 1, "sequence": 32}
    where = {"rows": {"a": 4}, "site": "a", "mailbox": "/mail"}
    alone = memory(spec, parse(Train, sizes, "train"), Pool())
    linked = memory(spec, parse(Train, sizes | {"link": where | link}, "train"), Pool())
    params = sum(math.prod(shape) for shape in spec.shapes().values())
    assert linked.buffers - alone.buffers == 4 * kept * params
