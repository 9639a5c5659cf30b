"""Cost tables: bytes that a program moves and keeps per tensor element, for this engine and for the programs
of papers that plans are compared with. Torch-free.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class CostTerms:
    """Named terms in one unit, with their total."""

    @property
    def total(self) -> float:
        return sum(vars(self).values())


@dataclass(frozen=True, kw_only=True)
class CostTable:
    """Bytes that memory-bound operations read and write per element, and bytes kept; all for 16-bit
    arithmetic with 32-bit states.

    Moved: `hidden_*` by a block's norms, dropout and residual sums, per element of the hidden state;
    `inner_*` by the MLP's activation, per element of its width; `scores_*` by softmax and dropout of unfused
    attention, per score (0 = fused kernel), `queries` at a time (0 = all), each piece with its visible keys;
    `logits` by the objective, per logit; `optimiser` by one update, per weight.

    Kept for the backward pass, per element of the hidden state: `kept_between` attention and MLP (rms norms:
    `kept_rms` more), `kept_products` inputs of their products, `kept_inside` attention, `kept_routed` per
    expert of a token; `kept_inner`, gated `kept_gated`, per element of the MLP's width; `kept_scores` per
    score.

    `gradient`: bytes sent per weight's gradient. `weight`: bytes sent per gathered weight. `residual`: bytes
    sent to the next stage per element of the hidden state. `states`: memory
    of a weight, its gradient and moments; of these `late` exist from the first backward pass of a step.
    `copied`: 16-bit copies of a rank's weights made by autocast. `chunk_logits` exist at once (0 = all), with
    `logit` bytes each; `head_rows` of the head's gradient are added at once (0 = all). `lost`: share of
    allocations lost by the allocator; if it keeps freed memory, it also has holes, `holes` times the working
    memory of a block and `holes_logits` times that of the objective. `copies_states`: a checkpoint is written
    from a copy in the same memory.

    `overlaps`: collectives run beside computation, not on the same cores. `sends_parts`: each tensor rank
    sends its part of the hidden state to the next stage, which gathers it (PTD-P, section 4.1).
    """

    hidden_forward: float = 22
    hidden_backward: float = 22
    inner_forward: float = 4
    inner_backward: float = 6
    scores_forward: float = 0
    scores_backward: float = 0
    queries: int = 0
    logits: float = 44
    optimiser: float = 40
    kept_between: float = 8
    kept_products: float = 4
    kept_rms: float = 0
    kept_inside: float = 8
    kept_inner: float = 4
    kept_gated: float = 8
    kept_routed: float = 4
    kept_scores: float = 0
    gradient: float = 4
    weight: float = 2
    residual: float = 4
    states: float = 16
    late: float = 4
    copied: float = 2
    chunk_logits: int = 1 << 26
    logit: float = 12
    head_rows: int = 0
    lost: float = 0.06
    holes: float = 0
    holes_logits: float = 0
    copies_states: bool = False
    sends_parts: bool = False
    overlaps: bool = True

    @property
    def is_fused(self) -> bool:
        """Whether attention never keeps scores in memory."""
        return self.scores_forward == 0

    def keys(self, sequence: int) -> float:
        """The average number of keys per query."""
        if not 0 < self.queries < sequence:
            return sequence
        return (sequence + self.queries) / 2

    def pieces(self, sequence: int) -> float:
        """The number of pieces into which a sequence's queries are split."""
        return max(1.0, sequence / self.queries) if self.queries else 1.0


STACKS = {
    # counted in this program's graph under autocast: norms read 32-bit sums, products read 16-bit copies of
    # them
    "atelier": CostTable(),
    # this engine on a CPU: attention by plain products, rms norm in several kernels. 16-bit arithmetic and
    # exponentials are slower than memory there: given as bytes that take as long. These and the holes were
    # measured on one machine (benchmarks/planner.py)
    "cpu": CostTable(
        hidden_forward=180,
        hidden_backward=250,
        inner_forward=30,
        inner_backward=47,
        scores_forward=40,
        scores_backward=25,
        logits=58,
        optimiser=44,
        queries=256,
        kept_rms=8,
        kept_scores=2,
        weight=4,
        overlaps=False,
        chunk_logits=1 << 21,
        head_rows=4096,
        lost=0,
        holes=1.5,
        holes_logits=1,
        copies_states=True,
    ),
    # Megatron-LM as of 2104.04473: scores in memory (softmax reads and writes 2 bytes each, dropout 5 with
    # its mask), fp16 gradients, an optimiser with separate passes for copying, unscaling and clipping; kept
    # values: 2205.05198, section 4.1
    "ptdp": CostTable(
        scores_forward=9,
        scores_backward=11,
        optimiser=62,
        kept_between=10,
        kept_products=0,
        kept_gated=4,
        kept_scores=5,
        gradient=2,
        residual=2,
        states=20,
        late=0,
        copied=0,
        chunk_logits=0,
        logit=6,
        sends_parts=True,
    ),
}
