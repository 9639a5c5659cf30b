"""The memory and time of inference: models that are scored, examined or continued. Torch-free."""

from dataclasses import dataclass

from atelier.engine.config.blocks import Blocks
from atelier.engine.config.generation import ROWS
from atelier.engine.config.parallel import InferenceLayout, Parallel, inference_axes
from atelier.engine.config.pool import Pool
from atelier.engine.config.registry import ModelSpec
from atelier.engine.plan.estimate import WIDTHS, machine_of
from atelier.engine.plan.partition import partition
from atelier.engine.plan.roofline import KERNELS

WRITING = "fp32"  # precision of weights, keys and values while a model writes
DRAWN = 5 * 8  # bytes per logit of a row while a token is drawn: float64, probabilities, order, sums
DRAW_S = 90e-9  # per logit of a row: softmax and sort in float64 on one core
ROW = 2048  # tokens of a row for which the costs of blocks are compared
PROCESS_GB = 0.5  # for torch and the tokenizer


def stage_blocks(model: ModelSpec, stages: int) -> tuple[int, ...]:
    """The number of blocks of each pipeline stage, for equal times. The last stage also has the head."""
    *costs, after = model.block_flops(ROW)
    return partition(costs, num_stages=stages, after=after)


def held_gb(model: ModelSpec, layout: InferenceLayout, width: int) -> float:
    """Memory of the fullest rank in GB: its share of the weights, of `width` bytes each; what it gathers of
    sharded ones, a block with the embedding or head; and its libraries. Keys, values and logits come on top.
    """
    counts, end = stage_blocks(model, layout.pipeline), model.tokens * model.hidden
    ends = end * (1 if getattr(model, "tied", True) else 2)
    block = max(0, model.num_params() - ends) / model.num_blocks
    only = [ends] if len(counts) == 1 else [end, *[0] * (len(counts) - 2), end]  # embedding first, head last
    stage = max(count * block + more for count, more in zip(counts, only, strict=True)) / layout.tensor
    shared = layout.shard * layout.expert
    gathered = 0.0 if shared == 1 else (end + block) / layout.tensor
    return width * min(stage, stage / shared + gathered) / 1e9 + PROCESS_GB


def seconds_of_reading(
    model: ModelSpec, tokens: int, length: int, layout: Parallel, pool: Pool, *, precision: str
) -> float:
    """Seconds of forward passes over `tokens` tokens in rows of `length`."""
    machine = machine_of(pool, pool.device, layout, precision)
    return tokens * model.flops_per_token(length) / 3 / (machine.flops * layout.ranks)


@dataclass(frozen=True)
class WritingCost:
    params: int
    tokens: int  # maximum read and written
    flops: float
    memory_gb: float
    seconds: float


def cost_of_writing(
    model: ModelSpec, prefix: int, tokens: int, documents: int, layout: Parallel, pool: Pool
) -> WritingCost:
    """The cost of `documents` documents: `prefix` tokens of each are given, `tokens` are drawn. Drawing one
    for each row takes the time of its arithmetic or of reading the weights, plus sampling from all logits.
    """
    machine, width = machine_of(pool, pool.device, layout, WRITING), WIDTHS[WRITING]
    length = prefix + tokens
    params, rows = model.num_params(), min(ROWS, documents)
    flops, parts = model.flops_per_token(length) / 3, layout.ranks // layout.replicate  # forward only
    groups = -(-documents // ROWS)
    launches = KERNELS * model.num_layers * machine.launch_s
    speed = machine.flops * layout.ranks
    step_s = max(rows * flops / speed, width * params / parts / machine.bandwidth) + launches
    step_s += rows * model.tokens * DRAW_S
    read_s = documents * prefix * flops / speed
    keys = model.kv_heads * model.head_width if isinstance(model, Blocks) else model.hidden
    cached = rows * length * 2 * model.num_layers * keys
    drawn = rows * model.tokens * DRAWN
    return WritingCost(
        params=params,
        tokens=documents * length,
        flops=flops * documents * length,
        memory_gb=held_gb(model, inference_axes(layout), width) + (width * cached / parts + drawn) / 1e9,
        seconds=read_s + groups * tokens * step_s,
    )
