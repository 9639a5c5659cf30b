"""What a training program sends and keeps for each number: ours, and that of the papers whose figures plans
are held against. Torch-free.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Stack:
    """Bytes read and written, a number, where the memory's bandwidth decides; all in 16-bit arithmetic with
    32-bit states.

    `hidden_*` are norms, dropout and residual sums of a block, per number of the hidden state; `inner_*` the
    MLP's activation, per number of its width; `scores_*` softmax and dropout of attention that has its scores
    in memory, per score (0 = one fused kernel); `logits` the objective, per logit; `optimiser` one update,
    per weight. `gradient` is what a weight's gradient takes on the wire, `states` what a weight, its gradient
    and its moments take in memory. `sends_parts`: each rank of the axis tensor sends its part of the hidden
    state to the next stage, which puts it together (PTD-P, section 4.1).
    """

    hidden_forward: float = 22
    hidden_backward: float = 22
    inner_forward: float = 4
    inner_backward: float = 6
    scores_forward: float = 0
    scores_backward: float = 0
    logits: float = 44
    optimiser: float = 40
    gradient: float = 4
    states: float = 16
    sends_parts: bool = False

    @property
    def is_fused(self) -> bool:
        """True when attention never has its scores in memory."""
        return self.scores_forward == 0


STACKS = {
    "atelier": Stack(),
    # Megatron-LM as of 2104.04473: scores in memory (softmax reads and writes 2 bytes each, dropout 5 with
    # its mask), fp16 gradients, an optimiser that copies, unscales and clips in passes of its own
    "ptdp": Stack(
        scores_forward=9, scores_backward=11, optimiser=62, gradient=2, states=20, sends_parts=True
    ),
}
