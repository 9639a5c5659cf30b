"""Compute time of one block and micro-batch on a device: matrix products by their shapes, other operations by
the bytes they move (a roofline, Williams et al. 2009). Torch-free.

M tokens of a rank, D hidden, F ffn, H query heads, S tokens of a row, T ranks of the axis tensor
"""

from dataclasses import dataclass

from atelier.engine.config.parallel import Axes
from atelier.engine.plan.cost_table import CostTable
from atelier.engine.plan.model_shape import ModelShape

FUSED_FORWARD = 0.75  # of the FLOP/s of products: one causal kernel (FlashAttention-2, 2307.08691, figure 5)
FUSED_BACKWARD = 0.65
FUSED_BACKWARD_FLOPS = 2.5  # multiple of the forward pass, with scores recomputed
HALF = 2  # bytes per number in products for which there are causal kernels
KERNELS = 12  # kernels between the products of a block's forward pass
SCORE_BYTES = 40  # per score of a memory's key: made, copied, sorted with its 64-bit index
ROW_BYTES = 4  # per number of a value row
MEMORY_REACHED = 0.8  # share of the memory bandwidth


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The machine of one rank: FLOP/s of large products, bytes/s, seconds from one kernel to the next."""

    flops: float
    bandwidth: float
    launch_s: float
    costs: CostTable
    width: int = 2  # bytes per number in products
    reads_ends: bool = True  # has attention without masks of documents

    def is_packed(self, model_shape: ModelShape) -> bool:
        """Whether attention skips what a mask would hide."""
        return self.reads_ends and self.width == HALF and model_shape.is_packed

    def product_s(self, rows: float, out: float, inner: float, count: float = 1) -> float:
        """Seconds of `count` products (rows, inner) x (inner, out)."""
        flops = 2 * rows * out * inner
        moved = self.width * (rows * inner + inner * out + rows * out)
        return count * (max(flops / self.flops, moved / (self.bandwidth * MEMORY_REACHED)) + self.launch_s)

    def pass_s(self, num_bytes: float) -> float:
        """Seconds to read and write `num_bytes`."""
        return num_bytes / (self.bandwidth * MEMORY_REACHED)


@dataclass(frozen=True)
class BlockTime:
    """Seconds of one block and micro-batch. `core`: the part that selective recomputation repeats."""

    forward_s: float
    backward_s: float
    core_s: float


def block_time(
    model_shape: ModelShape, rows: float, axes: Axes, machine: Machine, *, is_split: bool
) -> BlockTime:
    """Time of a block on `rows` sequences. `is_split` (sequence parallelism): operations between products are
    split by tokens over the axis tensor.
    """
    if not model_shape.matrices:
        flops = model_shape.flops[0] * rows * model_shape.sequence / axes.context / axes.tensor
        return BlockTime(flops / 3 / machine.flops, flops * 2 / 3 / machine.flops, 0.0)
    tokens = rows * model_shape.sequence / axes.context
    products = _products_s(model_shape, tokens, axes, machine)
    core_forward, core_backward = _attention_s(model_shape, rows, axes, machine)
    scale, costs = machine.width / 2, machine.costs
    hidden = tokens * model_shape.hidden / (axes.tensor if is_split else 1) * scale
    inner = tokens * model_shape.inner / axes.tensor * scale
    between = machine.pass_s(costs.hidden_forward * hidden + costs.inner_forward * inner)
    between_back = machine.pass_s(costs.hidden_backward * hidden + costs.inner_backward * inner)
    looked_up = _memory_s(model_shape, tokens, axes, machine)
    launches = KERNELS * machine.launch_s
    return BlockTime(
        forward_s=products + core_forward + between + looked_up + launches,
        backward_s=2 * products + core_backward + between_back + 2 * looked_up + 1.5 * launches,
        core_s=between if costs.is_fused else core_forward,
    )


def _products_s(model_shape: ModelShape, tokens: float, axes: Axes, machine: Machine) -> float:
    """Seconds of the block's matrices, split along the longer dim; experts get a share of the tokens."""
    total = 0.0
    for number, out, inner in model_shape.matrices:
        count, rows = float(number), tokens
        if model_shape.num_experts and number == model_shape.num_experts:
            count = number / axes.expert
            rows = tokens * model_shape.met / count
        split = (out / axes.tensor, inner) if out >= inner else (out, inner / axes.tensor)
        total += machine.product_s(rows, *split, count)
    return total


def _memory_s(model_shape: ModelShape, tokens: float, axes: Axes, machine: Machine) -> float:
    """Forward seconds of a product-key memory: products, value rows read, sorting of scores. Each tensor rank
    selects for all tokens and reads its columns.
    """
    memory = model_shape.memory
    rows = memory.read / axes.tensor
    flops = 2 * (memory.products - memory.read + rows)
    moved = SCORE_BYTES * memory.scores + ROW_BYTES * rows
    return tokens * (flops / machine.flops + machine.pass_s(moved))


def _attention_s(model_shape: ModelShape, rows: float, axes: Axes, machine: Machine) -> tuple[float, float]:
    """Forward and backward seconds of scores, softmax and the sum of values."""
    heads = rows * model_shape.num_heads / axes.tensor
    queries = model_shape.sequence / axes.context
    costs = machine.costs
    if costs.is_fused:
        is_causal = machine.is_packed(model_shape)  # else a mask is read, not skipped
        flops = 4 * heads * queries * model_shape.sequence * model_shape.head_dim / (2 if is_causal else 1)
        forward = flops / (machine.flops * FUSED_FORWARD)
        return forward, FUSED_BACKWARD_FLOPS * flops / (machine.flops * FUSED_BACKWARD)
    keys = costs.keys(model_shape.sequence)
    products = machine.product_s(queries, keys, model_shape.head_dim, heads)
    products += machine.product_s(queries, model_shape.head_dim, keys, heads)
    products -= 2 * (heads - 1) * machine.launch_s  # one batched kernel each, not one per head
    scores = heads * queries * keys
    forward = products + machine.pass_s(costs.scores_forward * scores)
    return forward, 2 * products + machine.pass_s(costs.scores_backward * scores)
