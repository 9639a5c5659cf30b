"""Cost of text written by a model: FLOPs, seconds, memory. Torch-free."""

from dataclasses import dataclass

from atelier.engine.config.blocks import Blocks
from atelier.engine.config.generation import ROWS, Written
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.pool import Pool
from atelier.engine.config.registry import ModelSpec
from atelier.engine.plan.estimate import machine_of
from atelier.engine.plan.roofline import KERNELS

PRECISION, WIDTH = "fp32", 4  # of weights, keys and values, with bytes per number
DRAWN = 5 * 8  # bytes per logit of a row while a token is drawn: float64, probabilities, order, sums
DRAW_S = 90e-9  # per logit of a row: softmax and sort in float64 on one core
PROCESS_GB = 0.5  # for torch and the tokenizer


@dataclass(frozen=True)
class WritingCost:
    params: int
    tokens: int  # maximum read and written
    flops: float
    memory_gb: float
    seconds: float


def cost_of_writing(
    model: ModelSpec, asked: Written, documents: int, layout: Parallel, pool: Pool
) -> WritingCost:
    """The cost of `documents` documents of the greatest length. A token of all rows takes the time of its
    arithmetic or of reading the weights, plus sampling from all logits.
    """
    machine = machine_of(pool, pool.device, layout, PRECISION)
    length = asked.prefix + asked.tokens
    params, rows = model.num_params(), min(ROWS, documents)
    flops = model.flops_per_token(length) / 3  # forward only
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
