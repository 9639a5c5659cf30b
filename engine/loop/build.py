"""Members from a training's description: network, weights, placement, optimiser, in one explicit order."""

import resource
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from engine.artifact import Input
from engine.loop.health import Detector
from engine.loop.learner import Learner
from engine.loop.member import Member, end_of
from engine.model.load import build, initialise, read_model
from engine.model.lora import apply as apply_lora
from engine.optim.load import build as build_optimizer
from engine.parallel import Gang, compile_blocks, compile_mode, shard, weight_dtype
from engine.spec.error import ConfigError
from engine.spec.parallel import Parallel
from engine.spec.run import Member as MemberSpec
from engine.spec.train import Train


@dataclass(frozen=True)
class House:
    """Where members are built: the gang, its layout, the finished models to start from, a folder for copies
    of remote files.
    """

    gang: Gang
    layout: Parallel
    inputs: Mapping[str, Input]
    scratch: Path


def build_member(name: str, spec: MemberSpec, *, train: Train, house: House) -> Member:
    """A member with its initial weights at its start: plain network, weights, LoRA, compile, shard,
    optimiser.
    """
    model = _initial_model(name, spec, train=train, house=house)
    if spec.mode == "frozen":
        model.requires_grad_(False)
    else:
        apply_lora(model, spec.role.trainable, seed=train.seed, name=spec.role.seed_name or name)
    flops = _flops(spec, train) / house.gang.world
    is_compiled = compile_mode(house.layout, flops=flops, device=house.gang.device) == "block"
    blocks: list[nn.Module] = list(model.blocks)  # type: ignore[arg-type]
    if is_compiled:
        compile_blocks(blocks)
    root = Learner(model, is_compiled=is_compiled)
    shard(root, blocks, gang=house.gang, layout=house.layout, precision=train.precision)
    root.train(spec.mode != "frozen")
    member = Member(
        name,
        spec,
        root=root,
        gang=house.gang,
        precision=train.precision,
        seed=train.seed,
        health=Detector(train.health),
    )
    if spec.mode != "frozen":
        member.optimizer = build_optimizer(spec.role.optim, model.named_parameters())
        member.prime_optimizer()
    return member


def _initial_model(name: str, spec: MemberSpec, *, train: Train, house: House) -> nn.Module:
    """The plain network with its first weights, whole, on the CPU, in the type that the optimiser moves."""
    dtype = weight_dtype(train.precision)
    if not spec.init:
        if spec.mode == "frozen":
            raise ConfigError(
                f"roles.{name}", "is frozen, but there is no model to take", "give members.<name>.init"
            )
        model = build(spec.role.model)
        initialise(model, seed=train.seed, name=spec.role.seed_name or name)
        return model.to(dtype)
    if spec.init not in house.inputs:
        known = ", ".join(house.inputs) or "none"
        raise ConfigError(f"roles.{name}.init", f"no input {spec.init!r}", f"inputs are: {known}")
    parent, parent_spec = read_model(house.inputs[spec.init], house.scratch, dtype=dtype)
    if spec.mode == "frozen":
        return parent
    if parent_spec.shapes() != spec.role.model.shapes():
        raise ConfigError(
            f"roles.{name}.init",
            f"the weights of {spec.init} do not fit roles.{name}.model",
            "give it the parent's model",
        )
    model = build(spec.role.model).to(dtype)
    model.load_state_dict(parent.state_dict())
    return model


def _flops(spec: MemberSpec, train: Train) -> float:
    """FLOPs of the role's whole training; a frozen teacher has only forward passes, a third of them."""
    tokens = train.global_batch * train.sequence
    each = spec.role.model.flops_per_token(train.sequence) * tokens
    if spec.mode == "frozen":
        return each * train.num_steps / 3
    return each * (end_of(spec) - int(spec.role.start))


def auto_micro_batch(train: Train, gang: Gang) -> int:
    """`auto` resolved: the largest divisor of a rank's sequences whose tokens are at most 8192 on a CPU,
    65536 on a GPU.
    """
    each = train.global_batch // gang.world
    if train.micro_batch != "auto":
        return train.micro_batch
    room = 65536 if gang.device.type == "cuda" else 8192
    return max(
        size
        for size in range(1, each + 1)
        if each % size == 0 and (size * train.sequence <= room or size == 1)
    )


def memory_gb(device: torch.device) -> float:
    """Peak memory of this rank so far, GB: of the device, or of the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
