"""Peak memory of a gang's fullest rank in a step, by part. Torch-free.

States: a weight with its gradient and moments, sharded over `shard`, `expert` and `context` (ZeRO,
1910.02054, section 5). Activations: values that each block keeps for the backward pass
(engine/plan/cost_table.py). Those between products are split over `tensor` only with sequence parallelism.
Selective recomputation keeps all but the scores, full recomputation only the block's input (Korthikanti et
al., 2205.05198, equations 1 to 6). A pipeline rank keeps as many micro-batches as there are ranks from it on
(section 4.2.3).

A step of one micro-batch peaks at the objective, before gradients exist, or at its end, when activations are
freed and gradients exist. With several micro-batches gradients exist from the second on.
"""

from dataclasses import dataclass

from atelier.engine.config.kind_files import extension_part
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.sections import extensions_of
from atelier.engine.config.train import Train
from atelier.engine.plan.cost_table import CostTerms
from atelier.engine.plan.model_shape import ModelShape
from atelier.engine.plan.roofline import Machine
from atelier.engine.plan.step_time import blocks_of_stages, micro_batch

KEPT_KEYS = 4  # bytes of keys and values per hidden element and piece of queries
KEPT_EXPERT = 2  # bytes per element of an expert's width: gate and up in 16 bits, before the activation
SPLIT_LOGIT = 8  # extra bytes per logit of a split vocabulary: shifted by the largest, and its exp
WIDENED = 4  # bytes per element of the head's gradient on a CPU, which casts it to the sum's type first
MIN_CHUNK = 256  # minimum of tokens whose logits exist at once


@dataclass(frozen=True, kw_only=True)
class Memory(CostTerms):
    """Bytes of the fullest rank, by part."""

    states: float
    gradients: float
    copies: float
    gathered: float
    activations: float
    working: float
    logits: float
    buffers: float
    checkpoint: float
    tier: float
    margin: float


@dataclass(frozen=True, kw_only=True)
class OffDevice:
    """Cost of weights that an extension keeps off the device: their number on the fullest rank, and bytes of
    the device's memory held for them (of a CPU the host's). An extension's cost.py may define `off_device`,
    which returns it.
    """

    params: float
    held: float

    def exposed(self, compute_s: float) -> float:
        """Seconds of a step that are not hidden behind `compute_s` of computation."""
        return 0.0


def peak_memory(
    model_shape: ModelShape, train: Train, parallel: Parallel, machine: Machine, tier: OffDevice | None = None
) -> Memory:
    """The peak of one role's training on its fullest rank. `tier`: weights kept off the device."""
    ranks = range(parallel.pipeline)
    found = [_Rank(model_shape, train, parallel, machine, rank, tier).peak() for rank in ranks]
    return max(found, key=lambda memory: memory.total)


class _Rank:
    """One pipeline rank; along the other axes all ranks hold equal amounts."""

    def __init__(
        self,
        model_shape: ModelShape,
        train: Train,
        parallel: Parallel,
        machine: Machine,
        rank: int,
        tier: OffDevice | None,
    ) -> None:
        self.tier = tier
        self.model_shape, self.parallel, self.machine, self.costs = (
            model_shape,
            parallel,
            machine,
            machine.costs,
        )
        axes, rows, ranks = parallel.axes, micro_batch(train, parallel), parallel.pipeline
        self.num_micro = max(1, train.global_batch // axes.data // rows)
        self.tokens = rows * model_shape.sequence / axes.context
        self.blocks = sum(blocks_of_stages(model_shape, parallel)[rank::ranks])
        self.is_last = rank == ranks - 1
        every = train.checkpoint_every  # the last checkpoint is written after everything else is freed
        self.is_saved = every == "auto" or every < train.steps
        self.flying = min(ranks - rank, self.num_micro)
        per_rank = parallel.num_stages // ranks
        if per_rank > 1:
            self.flying = min(ranks, self.num_micro) * (1 + (ranks - 1) / (ranks * per_rank))
        split = axes.tensor * axes.expert
        self.block_params, ends = (
            model_shape.block_params / split,
            model_shape.params - model_shape.block_params * model_shape.num_layers,
        )
        if ranks > 1:  # embedding on the first, head on the last, both whole if tied
            ends = (
                min(ends, max(ends / 2, model_shape.vocab * model_shape.hidden))
                if rank == 0 or self.is_last
                else 0.0
            )
        self.columns = 0.0  # this rank's share of the embedding
        if parallel.embedding_ranks > 1 and rank == 0:
            embedding = model_shape.vocab * model_shape.hidden
            ends, self.columns = ends - embedding, embedding / (parallel.embedding_ranks * axes.replicate)
        self.ends = ends / axes.tensor
        self.own = self.block_params * self.blocks + self.ends - (tier.params if tier else 0.0)
        extra = sum(_extra_bytes(name, train) for name in extensions_of(train))
        self.extra = extra * self.own / (axes.shard * axes.context)

    def peak(self) -> Memory:
        """The larger of the peaks at the objective and at the end of the backward pass."""
        states, late = self._states()
        kept, whole = self._block(self.parallel.recompute), self._block("none")
        share = 1 / self.parallel.recompute_every
        activations = self.flying * self.blocks * (share * kept + (1 - share) * whole)
        working = max(0.0, whole - kept)
        logits, gradient = self._objective()
        at_objective = {
            "gradients": late if self.num_micro > 1 else 0.0,
            "activations": activations,
            "working": working if working + gradient > logits else 0.0,
            "logits": gradient if working + gradient > logits else logits,
        }
        at_end = {"gradients": late, "activations": whole, "working": 0.0, "logits": 0.0}
        fullest = max(at_objective, at_end, key=lambda phase: sum(phase.values()))
        buffers = (
            4 * self.tokens * self.model_shape.hidden * self.machine.width if self.parallel.ranks > 1 else 0.0
        )
        always = {
            "states": states,
            "gathered": self._gathered(),
            "copies": self._copies(),
            "buffers": buffers + self._mask() + self.extra,
            "checkpoint": states if self.costs.copies_states and self.is_saved else 0.0,
            "tier": self.tier.held if self.tier else 0.0,
        }
        asked = sum(always.values()) + sum(fullest.values())
        holes = self.costs.holes * whole + self.costs.holes_logits * logits
        return Memory(**always, **fullest, margin=self.costs.lost * asked + holes)

    def _states(self) -> tuple[float, float]:
        """Bytes of weights with moments, and of gradients. In a pipeline and with zero=1, only moments and
        32-bit weights are sharded.
        """
        axes, costs = self.parallel.axes, self.costs
        shared = axes.shard * axes.context
        late, columns = costs.late * self.own, costs.late * self.columns
        more = costs.states * self.columns - columns
        if shared > 1 and (self.parallel.pipeline > 1 or self.parallel.zero == 1):
            stay = self.machine.width + costs.gradient
            rest = max(0.0, costs.states - stay) / shared
            return (stay + rest) * self.own - late + more, late + columns
        return (costs.states * self.own - late) / shared + more, late / shared + columns

    def _gathered(self) -> float:
        """Gathered weights of other ranks: two blocks and everything outside the blocks."""
        axes = self.parallel.axes
        if axes.shard * axes.replicate == 1 or self.parallel.zero != 3 or self.parallel.pipeline > 1:
            return 0.0
        return self.costs.weight * (2 * self.block_params + self.ends)

    def _copies(self) -> float:
        if self.machine.width > 2 or (
            self.costs.weight == self.costs.copied and self.parallel.axes.shard > 1
        ):
            return 0.0  # gathered in 16 bits
        return self.costs.copied * self.own

    def _objective(self) -> tuple[float, float]:
        """Bytes at the objective (logits, values computed from them, gradients), and bytes of the gradients
        alone.
        """
        if not self.is_last:
            return 0.0, 0.0
        vocab, scale = self.model_shape.vocab / self.parallel.axes.tensor, self.machine.width / 2
        tokens = self.tokens
        if self.costs.chunk_logits:
            tokens = min(tokens, max(MIN_CHUNK, self.costs.chunk_logits / vocab))
        added = min(vocab, self.costs.head_rows or vocab)
        widened = WIDENED if self.costs.head_rows and self.machine.width < 4 else 0
        gradient = (4 * vocab + (2 * scale + widened) * added) * self.model_shape.hidden
        hidden = 4 * self.tokens * self.model_shape.hidden
        each = self.costs.logit + (SPLIT_LOGIT if self.parallel.axes.tensor > 1 else 0)
        return each * scale * tokens * vocab + gradient + hidden, gradient + hidden

    def _mask(self) -> float:
        """The attention mask, shared by all blocks, if the model needs one or scores are in memory."""
        is_packed = self.machine.is_packed(self.model_shape)
        has_mask = not is_packed if self.costs.is_fused else self.costs.queries
        return self.machine.width * self.tokens * self.model_shape.sequence if has_mask else 0.0

    def _block(self, recompute: str) -> float:
        """Bytes that one block keeps of one micro-batch for the backward pass."""
        model_shape, costs, scale = self.model_shape, self.costs, self.machine.width / 2
        t = self.parallel.tensor
        apart = t if self.parallel.sequence_parallel else 1
        if recompute == "full":
            return (4 if costs.copied else 2) * self.tokens * model_shape.hidden * scale / apart
        inner = costs.kept_gated if model_shape.is_gated else costs.kept_inner
        between = costs.kept_between + (costs.kept_rms if model_shape.has_rms_norm else 0.0)
        pieces = costs.keys(model_shape.sequence) * costs.pieces(model_shape.sequence) / model_shape.sequence
        inside = costs.kept_inside + KEPT_KEYS * (pieces - 1)
        hidden = between / apart + costs.kept_products + inside / t
        found = hidden * model_shape.hidden + inner * (model_shape.width - model_shape.routed_width) / t
        routed = KEPT_EXPERT * (2 if model_shape.is_gated else 1)
        found += routed * model_shape.routed_width / t
        if model_shape.num_experts:
            found += costs.kept_routed * model_shape.met * model_shape.hidden
        if model_shape.memory.kept:  # at least 32 bits per number; every tensor rank has all
            found += max(4, self.machine.width) * model_shape.memory.kept / scale
        if recompute == "none":
            found += costs.kept_scores * costs.keys(model_shape.sequence) * model_shape.num_heads / t
        return self.tokens * found * scale


def _extra_bytes(extension: str, train: Train) -> float:
    """Bytes that an extension keeps per trained weight."""
    cost = extension_part(extension, "cost", "bytes_of_weight")
    return 0.0 if cost is None else float(cost.bytes_of_weight(train))
