"""Minimum memory and time of models that are read from their files while they compute. Torch-free."""

import re
from collections import Counter
from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from atelier.engine.config.device import Device
from atelier.engine.config.error import ConfigError
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.sections import frozen_limit

STREAM = 2  # buffers of a stream: one computes, one is read
SCORED = 4  # bytes per number when models are scored
LINE = 64  # bytes of a cache line; a weight's offset in it may change last bits of products
TOGETHER = 256e6  # bytes of batches in the blocks at once: residual streams and masks
BLOCK = re.compile(r"(.*?\bblocks\.\d+\.)(.*)")


class Shares(NamedTuple):
    """Division of memory: bytes of always resident weights, number of resident first blocks, buffers for
    other blocks and for experts.
    """

    resident: int
    stay: int
    blocks: int
    experts: int


def divided(memory: int, rest: int, blocks: Sequence[int], expert: int, num_experts: int) -> Shares | None:
    """Divide memory between weights outside the blocks (`rest`), blocks without experts, and experts; None if
    it is too small. Sizes in bytes, `expert` the largest. Blocks come before experts, because every token
    needs them.
    """
    left = memory - least_of(rest, blocks, expert)
    if left < 0:
        return None
    largest, total, stay = max(blocks, default=0), sum(blocks), len(blocks)
    if total <= left + STREAM * largest:  # all blocks are resident
        left += STREAM * largest - total
    else:
        stay = 0
        while blocks[stay] <= left:
            left -= blocks[stay]
            stay += 1
    more = left // expert if expert else 0
    buffers = min(num_experts, STREAM + more) if num_experts else 0
    return Shares(rest, stay, STREAM if stay < len(blocks) else 0, buffers)


def least_of(rest: int, blocks: Sequence[int], expert: int) -> int:
    return rest + STREAM * (max(blocks, default=0) + expert)


class StreamedPass(NamedTuple):
    """A pass of batches through a model larger than its memory. `expert`: bytes of one; `read`: bytes read if
    every expert has tokens; `tokens`: number that go through together; `gbps`: rate.
    """

    expert: int
    num_experts: int
    in_memory: int
    read: int
    tokens: int
    gbps: float
    read_s: float
    compute_s: float


def streamed_pass(
    model: ModelSpec, gb: float, itemsize: int, sequence: int, device: Device, *, is_cpu: bool
) -> StreamedPass | None:
    """The pass at the rate of the slower of disk and device link; None if the model fits into `gb` of
    memory.
    """
    rest, blocks, experts, number = _parts(model, itemsize, line=1)
    largest = max(experts.values(), default=0)
    if not gb or gb * 1e9 >= model.num_params() * itemsize:
        return None
    shares = divided(int(gb * 1e9), rest, list(blocks.values()), largest, number)
    if shares is None:
        return None
    every = sum(size * number // len(experts) for size in experts.values())
    read = sum(list(blocks.values())[shares.stay :]) + (every if shares.experts < number else 0)
    pace = device.disk_gbps if is_cpu else min(device.disk_gbps, device.host_gbps)
    tokens = int(TOGETHER / (model.hidden * itemsize + sequence))
    flops = tokens * model.flops_per_token(sequence) / 3
    return StreamedPass(
        largest, number, shares.experts, read, tokens, pace, read / (pace * 1e9),
        flops / (device.peak_tflops * device.matmul * 1e12),
    )  # fmt: skip


def check_whole(layout: Parallel, name: str) -> None:
    """Check that a frozen teacher that may be streamed is whole on every rank, except its experts."""
    limit = frozen_limit(layout)
    if limit is None:
        return
    for axis in ("pipeline", "shard", "context", "tensor"):
        if (size := getattr(layout, axis)) > 1:
            raise ConfigError(
                limit.place,
                f"streams frozen {name} whole on every rank, but {axis}={size} splits it",
                f"use replicate={size}, or {limit.place.rpartition('.')[2]}=0",
            )


def check_streamed(place: str, gb: float, name: str, model: ModelSpec, itemsize: int) -> None:
    """Check that `gb` of memory hold all weights of a model with known vocabulary, or the minimum at once, at
    `itemsize` bytes per number.
    """
    if gb and gb * 1e9 < min(model.num_params() * itemsize, least_bytes(model, itemsize, line=1)):
        raise too_little(place, gb, name, least_bytes(model, itemsize))


def too_little(place: str, gb: float, name: str, least: int) -> ConfigError:
    """The error for too little memory; `least` is rounded up to three digits."""
    step = 10 ** max(0, len(str(least)) - 3)
    return ConfigError(
        place,
        f"{gb:.4g} GB cannot hold two blocks, two experts and the resident weights of {name}",
        f"{-(-least // step) * step / 1e9:.4g} GB is the minimum for this model",
    )


def least_bytes(model: ModelSpec, itemsize: int, *, line: int = LINE) -> int:
    """Bytes of the weights outside the blocks, two blocks without experts and two experts, the largest ones,
    each weight rounded to cache lines.
    """
    rest, blocks, experts, _ = _parts(model, itemsize, line)
    return least_of(rest, list(blocks.values()), max(experts.values(), default=0))


def _parts(model: ModelSpec, itemsize: int, line: int) -> tuple[int, Counter[str], Counter[str], int]:
    """Bytes outside the blocks, of each block without experts, and of one expert per mixture; total number of
    experts.
    """

    def room(*shape: int) -> int:
        return (-(-prod(shape) * itemsize // line) + (line > 1)) * line

    rest, blocks, experts, number = 0, Counter[str](), Counter[str](), dict[str, int]()
    for weight, shape in model.shapes().items():
        found = BLOCK.match(weight)
        if found is None:
            rest += room(*shape)
        elif ".experts." in f".{found[2]}" and len(shape) == 3:
            experts[found[1]] += room(*shape[1:])
            number[found[1]] = shape[0]
        else:
            blocks[found[1]] += room(*shape)
    return rest, blocks, experts, sum(number.values())
