"""What the fullest rank of a gang holds at the peak of a step, part by part. Torch-free.

States: a weight with its gradient and moments, shared over `shard`, `expert` and `context` (ZeRO, 1910.02054,
section 5). Activations of a block, bytes per token and hidden number: 34 + 5 a S / D with scores in memory,
of which what lies between products is split over `tensor` only with sequence parallelism; kept for selective
recomputation 34, for full recomputation the block's input, 2 (Korthikanti et al., 2205.05198, equations 1 to
6). Of a pipeline the first stage keeps as many micro-batches as it has stages behind it (section 4.2.3).
"""

from dataclasses import dataclass

from engine.plan.net import Net
from engine.plan.parts import Parts
from engine.plan.steps import blocks_of_stages, micro_batch
from engine.plan.work import Machine
from engine.spec.parallel import Parallel
from engine.spec.train import Train

CHUNK = 1024  # tokens whose logits exist at once
MARGIN = 0.06  # of what a program asks for, lost between the pieces of an allocator


@dataclass(frozen=True, kw_only=True)
class Memory(Parts):
    """Bytes of the fullest rank."""

    states: float
    gathered: float
    activations: float
    working: float
    logits: float
    buffers: float
    margin: float


def peak_memory(net: Net, train: Train, parallel: Parallel, machine: Machine) -> Memory:
    """The peak of one role's training on the rank that holds most of it."""
    axes, rows = parallel.axes, micro_batch(train, parallel)
    counts = blocks_of_stages(net, parallel)
    per_rank = parallel.num_stages // parallel.pipeline
    first = sum(counts[:: parallel.pipeline])
    block = net.block_params
    ends = net.params - block * net.num_layers
    own = (block * first + (ends if parallel.pipeline == 1 else ends / 2)) / (axes.tensor * axes.expert)
    states = _states(own, parallel, machine)
    gathered = 0.0
    if axes.shard > 1 and parallel.zero == 3 and parallel.pipeline == 1:
        gathered = 2 * machine.width * block / (axes.tensor * axes.expert)
    tokens = rows * net.sequence / axes.context
    whole = _block_bytes(net, tokens, parallel, machine, "none")
    kept = _block_bytes(net, tokens, parallel, machine, parallel.recompute)
    num_micro = max(1, train.global_batch // axes.data // rows)
    flying = min(parallel.pipeline, num_micro)
    if per_rank > 1:
        flying *= 1 + (parallel.pipeline - 1) / (parallel.pipeline * per_rank)
    share = 1 / parallel.recompute_every
    activations = flying * first * (share * kept + (1 - share) * whole)
    working = whole - kept if parallel.recompute != "none" else 0.0
    chunk = tokens if not machine.stack.is_fused else min(CHUNK, tokens)
    logits = 0.0 if parallel.pipeline > 1 else 6.0 * chunk * net.vocab / axes.tensor * machine.width / 2
    buffers = 2 * tokens * net.hidden * machine.width if parallel.ranks > 1 else 0.0
    asked = states + gathered + activations + working + logits + buffers
    return Memory(
        states=states,
        gathered=gathered,
        activations=activations,
        working=working,
        logits=logits,
        buffers=buffers,
        margin=MARGIN * asked,
    )


def _states(own: float, parallel: Parallel, machine: Machine) -> float:
    """Weights, gradients and moments of `own` weights. In a pipeline, and with zero=1, only the moments and
    the 32-bit weights are shared.
    """
    axes, whole = parallel.axes, machine.stack.states
    shared = axes.shard * axes.context
    if shared == 1:
        return whole * own
    if parallel.pipeline > 1 or parallel.zero == 1:
        stay = machine.width + machine.stack.gradient
        return stay * own + max(0.0, whole - stay) * own / shared
    return whole * own / shared


def _block_bytes(net: Net, tokens: float, parallel: Parallel, machine: Machine, recompute: str) -> float:
    """What one block keeps of one micro-batch for the backward pass."""
    t, scale = parallel.tensor, machine.width / 2
    is_split = parallel.sequence_parallel and t > 1
    state = tokens * net.hidden * scale
    if recompute == "full":
        return 2 * state / (t if is_split else 1)
    between, products = 10.0, 8.0 + 16.0 * net.inner / (4 * net.hidden)
    found = state * (between / (t if is_split else 1) + products / t)
    if recompute == "none" and not machine.stack.is_fused:
        found += 5 * tokens * net.sequence * net.num_heads / t * scale
    return found
