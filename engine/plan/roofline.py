"""How long a device computes on one block, one micro-batch: matrix products by their shapes, and what lies
between them by the bytes it moves (a roofline, Williams et al. 2009). Torch-free.

M tokens of a rank, D hidden, F ffn, H query heads, S tokens of a row, T ranks of the axis tensor
"""

from dataclasses import dataclass

from atelier.engine.config.parallel import Axes
from atelier.engine.plan.cost_table import Stack
from atelier.engine.plan.model_shape import Net

FUSED_FORWARD = 0.75  # of what products reach: one causal kernel (FlashAttention-2, 2307.08691, figure 5)
FUSED_BACKWARD = 0.65
FUSED_BACKWARD_FLOPS = 2.5  # of the forward pass: scores are computed again
KERNELS = 12  # of a block's forward pass, between its products
MEMORY_REACHED = 0.8  # of the memory's bandwidth


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What one rank computes with: FLOP/s of large products, bytes/s, seconds from one kernel to the next."""

    flops: float
    bandwidth: float
    launch_s: float
    stack: Stack
    width: int = 2  # bytes of a number in products

    def product_s(self, rows: float, out: float, inner: float, count: float = 1) -> float:
        """Seconds of `count` products (rows, inner) x (inner, out)."""
        flops = 2 * rows * out * inner
        moved = self.width * (rows * inner + inner * out + rows * out)
        return count * (max(flops / self.flops, moved / (self.bandwidth * MEMORY_REACHED)) + self.launch_s)

    def pass_s(self, num_bytes: float) -> float:
        """Seconds of reading and writing so many bytes."""
        return num_bytes / (self.bandwidth * MEMORY_REACHED)


@dataclass(frozen=True)
class BlockTime:
    """Seconds of one block and micro-batch. `core` is what selective recomputation does again."""

    forward_s: float
    backward_s: float
    core_s: float


def block_time(net: Net, rows: float, axes: Axes, machine: Machine, *, is_split: bool) -> BlockTime:
    """A block on `rows` sequences; `is_split`: what lies between products is split by tokens over the axis
    tensor.
    """
    if not net.matrices:
        flops = net.flops[0] * rows * net.sequence / axes.context / axes.tensor
        return BlockTime(flops / 3 / machine.flops, flops * 2 / 3 / machine.flops, 0.0)
    tokens = rows * net.sequence / axes.context
    products = _products_s(net, tokens, axes, machine)
    core_forward, core_backward = _attention_s(net, rows, axes, machine)
    scale, stack = machine.width / 2, machine.stack
    hidden = tokens * net.hidden / (axes.tensor if is_split else 1) * scale
    inner = tokens * net.inner / axes.tensor * scale
    between = machine.pass_s(stack.hidden_forward * hidden + stack.inner_forward * inner)
    between_back = machine.pass_s(stack.hidden_backward * hidden + stack.inner_backward * inner)
    launches = KERNELS * machine.launch_s
    return BlockTime(
        forward_s=products + core_forward + between + launches,
        backward_s=2 * products + core_backward + between_back + 1.5 * launches,
        core_s=between if stack.is_fused else core_forward,
    )


def _products_s(net: Net, tokens: float, axes: Axes, machine: Machine) -> float:
    """The block's matrices, each split along its longer dim; an expert meets its share of the tokens."""
    total = 0.0
    for number, out, inner in net.matrices:
        count, rows = float(number), tokens
        if net.num_experts and number == net.num_experts:
            count = number / axes.expert
            rows = tokens * net.met / count
        split = (out / axes.tensor, inner) if out >= inner else (out, inner / axes.tensor)
        total += machine.product_s(rows, *split, count)
    return total


def _attention_s(net: Net, rows: float, axes: Axes, machine: Machine) -> tuple[float, float]:
    """Forward and backward seconds of scores, softmax and the sum of values."""
    heads = rows * net.num_heads / axes.tensor
    queries = net.sequence / axes.context
    stack = machine.stack
    if stack.is_fused:
        flops = 4 * heads * queries * net.sequence * net.head_dim / 2  # the causal half
        forward = flops / (machine.flops * FUSED_FORWARD)
        return forward, FUSED_BACKWARD_FLOPS * flops / (machine.flops * FUSED_BACKWARD)
    keys = stack.keys(net.sequence)
    products = machine.product_s(queries, keys, net.head_dim, heads)
    products += machine.product_s(queries, net.head_dim, keys, heads)
    products -= 2 * (heads - 1) * machine.launch_s  # one batched kernel each, not one a head
    scores = heads * queries * keys
    forward = products + machine.pass_s(stack.scores_forward * scores)
    return forward, 2 * products + machine.pass_s(stack.scores_backward * scores)
