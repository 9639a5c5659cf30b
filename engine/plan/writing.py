"""What it costs to have a model write text: FLOPs, seconds, memory. Torch-free."""

from dataclasses import dataclass

from atelier.engine.config.blocks import Blocks
from atelier.engine.config.generation import ROWS, Written
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.pool import Pool
from atelier.engine.config.registry import ModelSpec
from atelier.engine.plan.estimate import machine_of
from atelier.engine.plan.roofline import KERNELS

PRECISION, WIDTH = "fp32", 4  # of weights, keys and values, bytes
DRAWN = 5 * 8  # bytes of each logit of a row while a token is drawn: float64, shares, their order and sums
DRAW_S = 90e-9  # for each logit of a row, in float64 on one core: softmax and sort
PROCESS_GB = 0.5  # of torch and the tokenizer


@dataclass(frozen=True)
class WritingCost:
    params: int
    tokens: int  # read and written, at most
    flops: float
    memory_gb: float
    seconds: float


def cost_of_writing(
    model: ModelSpec, asked: Written, documents: int, layout: Parallel, pool: Pool
) -> WritingCost:
    """Of `documents` documents, all of the longest length. A token of all rows takes what its arithmetic
    takes, or what it takes to read the weights, and the draws from all logits.
    """
    machine = machine_of(pool, pool.device, layout, PRECISION)
    length = asked.prefix + asked.tokens
    params, rows = model.num_params(), min(ROWS, documents)
    flops = model.flops_per_token(length) / 3  # forward alone
    groups = -(-documents // ROWS)
    launches = KERNELS * model.num_layers * machine.launch_s
    step_s = max(rows * flops / machine.flops, WIDTH * params / machine.bandwidth) + launches
    step_s += rows * model.tokens * DRAW_S
    read_s = documents * asked.prefix * flops / machine.flops
    keys = model.kv_heads * model.head_width if isinstance(model, Blocks) else model.hidden
    cached = rows * length * 2 * model.num_layers * keys
    drawn = rows * model.tokens * DRAWN
    return WritingCost(
        params=params,
        tokens=documents * length,
        flops=flops * documents * length,
        memory_gb=(WIDTH * (params + cached) + drawn) / 1e9 + PROCESS_GB,
        seconds=read_s + groups * asked.tokens * step_s,
    )
