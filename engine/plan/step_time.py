"""Time of one optimiser step, by part: computation, pipeline bubble, collectives, optimiser. Torch-free.

With p pipeline ranks, v stages on each and m micro-batches, a step takes m times the slowest rank's time,
plus the other ranks' once, divided by v (Narayanan et al., PTD-P, 2104.04473, section 2.2). Per block and
micro-batch, tensor parallelism reduces 4 times the hidden states (section 3.2). Sequence parallelism sends as
much and gathers each product's input again in the backward pass (2205.05198, section 4.2.2; counted in full,
since the overlapped product needs the same cores).
"""

from dataclasses import dataclass
from functools import cache, reduce
from itertools import accumulate, pairwise
from math import comb
from operator import add

from atelier.engine.config.parallel import Parallel
from atelier.engine.config.train import Train
from atelier.engine.plan.cost_table import CostTerms
from atelier.engine.plan.interconnect import Interconnect, strides
from atelier.engine.plan.model_shape import ModelShape
from atelier.engine.plan.partition import partition
from atelier.engine.plan.roofline import BlockTime, Machine, block_time

SPLIT_BUBBLE = 1 / 3  # share of 1f1b's bubble left if weight gradients fill the gaps (2401.10241, ZB-H1)
EMBEDDING_BYTES = 12  # read and written per hidden element in both passes
NEWTON_STEPS = 5
TOKEN_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class Seconds(CostTerms):
    """The parts of one step, without communication hidden behind computation."""

    compute: float
    bubble: float
    tensor: float
    context: float
    expert: float
    pipeline: float
    data: float
    optimiser: float
    disk: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Stage(CostTerms):
    """Time of one stage for one micro-batch, seconds."""

    compute: float
    tensor: float
    context: float
    expert: float
    pipeline: float

    def __add__(self, other: "Stage") -> "Stage":
        return Stage(**{name: value + getattr(other, name) for name, value in vars(self).items()})


def micro_batch(train: Train, parallel: Parallel) -> int:
    """Sequences per micro-batch. `auto` is all of a step's; in a pipeline it is one."""
    each = max(1, train.global_batch // parallel.axes.data)
    if train.micro_batch != "auto":
        return min(train.micro_batch, each)
    return 1 if parallel.pipeline > 1 else each


def step_time(
    model_shape: ModelShape,
    optim: str,
    train: Train,
    parallel: Parallel,
    machine: Machine,
    interconnect: Interconnect,
) -> Seconds:
    """Time of one step of the model alone."""
    rows = micro_batch(train, parallel)
    num_micro = max(1, train.global_batch // parallel.axes.data // rows)
    ranks = _ranks(_stages(model_shape, rows, parallel, machine, interconnect), parallel.pipeline)
    slowest = max(ranks, key=lambda rank: rank.total)
    per_rank = parallel.num_stages // parallel.pipeline
    filling = (sum(rank.total for rank in ranks) - slowest.total) / per_rank
    if parallel.schedule == "zb":
        filling *= SPLIT_BUBBLE
    computed = num_micro * slowest.compute
    return Seconds(
        compute=computed,
        bubble=max(0.0, filling),
        tensor=num_micro * slowest.tensor,
        context=num_micro * slowest.context,
        expert=num_micro * slowest.expert,
        pipeline=num_micro * slowest.pipeline,
        data=_data_s(model_shape, num_micro, parallel, machine, interconnect, computed)
        + _embedding_s(model_shape, rows, num_micro, parallel, machine, interconnect),
        optimiser=_optimiser_s(model_shape, optim, parallel, machine),
    )


def blocks_of_stages(model_shape: ModelShape, parallel: Parallel) -> tuple[int, ...]:
    """Blocks of each stage, as the engine assigns them."""
    if parallel.stages:
        return parallel.stages
    if parallel.num_stages == 1:
        return (model_shape.num_layers,)
    return _dealt(model_shape.flops, parallel.num_stages, model_shape.after, parallel.speeds)


@cache
def _dealt(costs: tuple[float, ...], num: int, after: float, speeds: tuple[float, ...]) -> tuple[int, ...]:
    return partition(costs, num_stages=num, after=after, speeds=speeds if len(speeds) == num else ())


def _stages(
    model_shape: ModelShape, rows: int, parallel: Parallel, machine: Machine, interconnect: Interconnect
) -> list[Stage]:
    axes, apart = parallel.axes, strides(parallel)
    is_split = parallel.sequence_parallel and axes.tensor > 1
    block = block_time(model_shape, rows, axes, machine, is_split=is_split)
    tokens = rows * model_shape.sequence / axes.context
    state = tokens * model_shape.hidden * machine.width  # bytes of the hidden state
    again = _again(block, parallel)
    repeated = 2 / parallel.recompute_every if parallel.recompute == "full" else 0
    passes = 4 + repeated + (1 if is_split else 0)
    tensor = passes * interconnect.reduce_s(state, axes.tensor, apart["tensor"])
    context = 0.0
    if axes.context > 1:
        keys = (
            2
            * rows
            * model_shape.sequence
            * model_shape.kv_heads
            / axes.tensor
            * model_shape.head_dim
            * machine.width
        )
        context = 3 * interconnect.gather_s(keys, axes.context, apart["context"])
    expert = 4 * interconnect.exchange_s(
        state * ranks_met(model_shape, axes.expert), axes.expert, apart["expert"]
    )
    sent = 0.0
    if parallel.pipeline > 1:
        parts = axes.tensor if is_split or machine.costs.sends_parts else 1
        each = max(machine.costs.residual, machine.width)
        sent = 2 * interconnect.send_s(each / machine.width * state / parts, apart["pipeline"])
    counts = blocks_of_stages(model_shape, parallel)
    found = []
    for first, last in pairwise([0, *accumulate(counts)]):
        compute = (last - first) * (block.forward_s + block.backward_s + again)
        if first == 0:
            compute += machine.pass_s(EMBEDDING_BYTES * tokens * model_shape.hidden)
        if last == model_shape.num_layers:
            compute += _after_s(model_shape, tokens, axes.tensor, machine)
        found.append(
            Stage(
                compute=compute,
                tensor=(last - first) * tensor,
                context=(last - first) * context,
                expert=(last - first) * expert,
                pipeline=sent,
            )
        )
    return found


def ranks_met(model_shape: ModelShape, ranks: int) -> float:
    """The number of ranks that a token is sent to, for experts spread evenly over `ranks`."""
    experts = model_shape.num_experts
    elsewhere, chosen = experts - experts // ranks, model_shape.met
    return ranks * (1 - comb(elsewhere, chosen) / comb(experts, chosen)) if experts else 0.0


def _ranks(stages: list[Stage], pipeline: int) -> list[Stage]:
    """Time of each pipeline rank per micro-batch: it has every `pipeline`-th stage."""
    return [reduce(add, stages[rank::pipeline]) for rank in range(pipeline)]


def _again(block: BlockTime, parallel: Parallel) -> float:
    """Recomputation time in a block's backward pass."""
    share = 1 / parallel.recompute_every
    return share * {"none": 0.0, "selective": block.core_s, "full": block.forward_s}[parallel.recompute]


def _after_s(model_shape: ModelShape, tokens: float, tensor: int, machine: Machine) -> float:
    """Time after the blocks, forward and backward: task nets, head and objective."""
    head = 3 * machine.product_s(tokens, model_shape.vocab / tensor, model_shape.hidden)
    others = (
        max(0.0, model_shape.after - 6.0 * model_shape.vocab * model_shape.hidden)
        * tokens
        / tensor
        / machine.flops
    )
    logits = machine.pass_s(machine.costs.logits * tokens * model_shape.vocab / tensor)
    return head + others + logits


def _data_s(
    model_shape: ModelShape,
    num_micro: int,
    parallel: Parallel,
    machine: Machine,
    interconnect: Interconnect,
    computed_s: float,
) -> float:
    """Time to gather weights and reduce gradients, block by block. Over `shard` both overlap with the
    previous block's computation, and the longer one counts (ZeRO-3, 1910.02054, section 7.2), unless
    collectives use the same cores. Over `replicate`, gradients are reduced at the end of the step.
    """
    axes, apart = parallel.axes, strides(parallel)
    params = _params(model_shape, parallel)
    pieces = model_shape.num_layers / parallel.pipeline + 1
    gradients = machine.costs.gradient * params
    found = interconnect.reduce_s(gradients / axes.shard, axes.replicate, apart["replicate"], pieces)
    if axes.shard > 1:
        whole = parallel.pipeline > 1 or parallel.zero == 1
        gathers = 1 if whole else num_micro * (2 if parallel.zero == 3 else 1)
        reduces = 1 if whole else num_micro
        weights = max(machine.width, machine.costs.weight) * params
        sent = interconnect.gather_s(weights, axes.shard, apart["shard"], pieces) * gathers
        sent += interconnect.gather_s(gradients, axes.shard, apart["shard"], pieces) * reduces
        hidden = (
            computed_s * (1 - 1 / model_shape.num_layers) if machine.costs.overlaps and not whole else 0.0
        )
        found += max(sent - hidden, sent / model_shape.num_layers)
    return found


def _embedding_s(
    model_shape: ModelShape,
    rows: int,
    num_micro: int,
    parallel: Parallel,
    machine: Machine,
    interconnect: Interconnect,
) -> float:
    """Time of an embedding split by columns: per micro-batch an exchange of the tokens and of their rows each
    way; reduction of its gradients over replicas.
    """
    axes, apart, size = parallel.axes, strides(parallel), parallel.embedding_ranks
    if size == 1:
        return 0.0
    tokens = rows * model_shape.sequence / axes.context
    found = 2 * interconnect.exchange_s(tokens * model_shape.hidden * machine.width, size, apart["context"])
    found += interconnect.gather_s(TOKEN_BYTES * tokens * size, size, apart["context"])
    columns = machine.costs.gradient * model_shape.vocab * model_shape.hidden / size
    return num_micro * found + interconnect.reduce_s(columns, axes.replicate, apart["replicate"])


def _params(model_shape: ModelShape, parallel: Parallel) -> float:
    """Weights of one rank before sharding over `shard`, without an embedding split by columns."""
    params = float(model_shape.params)
    if parallel.embedding_ranks > 1:
        params -= model_shape.vocab * model_shape.hidden
    return params / (parallel.axes.tensor * parallel.pipeline * parallel.axes.expert)


def _optimiser_s(model_shape: ModelShape, optim: str, parallel: Parallel, machine: Machine) -> float:
    own = _params(model_shape, parallel) / parallel.axes.shard
    if parallel.embedding_ranks > 1:
        own += model_shape.vocab * model_shape.hidden / (parallel.embedding_ranks * parallel.axes.replicate)
    seconds = machine.pass_s(machine.costs.optimiser * own)
    if optim == "muon":
        seconds += _newton_s(model_shape, parallel, machine)
    return seconds


def _newton_s(model_shape: ModelShape, parallel: Parallel, machine: Machine) -> float:
    """Muon's orthogonalisation: three products per iteration for every matrix of a stage's blocks, of which
    each of its ranks computes a share; those of experts on the ranks that hold them.
    """
    axes, flops = parallel.axes, 0.0
    for count, *sizes in model_shape.matrices:
        small, large = sorted(sizes)
        ranks = axes.ranks if count == 1 else axes.shard * axes.expert * axes.context
        flops += count * NEWTON_STEPS * (4.0 * small * small * large + 2.0 * small**3) / ranks
    return flops * model_shape.num_layers / parallel.pipeline / machine.flops
