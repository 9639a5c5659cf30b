"""Distillation of attention: KL of attention distributions, mean over heads, for each scored token (MiniLM,
2002.10957, section 3.1).

B rows, T tokens, S tokens of whole rows, R relation heads, E head width, W = R E
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from atelier.engine.config.batch import NOT_SCORED
from atelier.engine.config.error import ConfigError
from atelier.engine.config.objective.attention import Attention
from atelier.engine.model.auxiliary import add_layer, teach_last_block
from atelier.engine.model.contract import Relations
from atelier.engine.objective.chunked import TeacherSide
from atelier.engine.objective.terms import State, Term
from atelier.engine.objective.vocab_slice import ranks_of, summed

ROWS = 256  # queries at a time: a long row's scores are never all in memory

READS_RELATIONS = True


def add_modules(model: nn.Module, spec: Attention, *, teacher_hidden: int) -> None:
    """Give a student's plain model the auxiliary layer, or let gradients into its last block, in place."""
    add_layer(model) if spec.auxiliary else teach_last_block(model)


def terms(spec: Attention, state: State, teacher: TeacherSide | None, rows_B: Tensor | None) -> Term:
    """The divergence of all scored tokens' attention from the teacher's, nats. Raises ConfigError if one of
    the models does not expose its attention.
    """
    output = state.output
    if output.mask is None or not output.relations or teacher is None or not teacher.relations:
        raise ConfigError(
            "objective", "one of the two models exposes no attention", "objective=distill needs only logits"
        )
    mine, theirs = state.whole_keys(output.relations), state.whole_keys(teacher.relations)
    is_scored_BT = state.batch["labels_BT"] != NOT_SCORED
    if rows_B is not None:
        is_scored_BT = is_scored_BT & rows_B[:, None]
    total, value = state_sum(spec, mine, theirs, output.mask, is_scored_BT, state.group)
    return Term(total, {"": value})


def state_sum(
    spec: Attention,
    student: Relations,
    teacher: Relations,
    mask_B1TS: Tensor,
    is_scored_BT: Tensor,
    group: dist.ProcessGroup | None = None,
) -> tuple[Tensor, Tensor]:
    """sum over scored tokens of mean_r sum_s p_rs (log p_rs - log q_rs), nats: differentiable, and its value.

    p is the teacher's attention over tokens that the mask allows, q the student's. Keys are those of whole
    rows. In a `group` each rank has some heads: the first result is this rank's share, the second the full
    sum.
    """
    may_B1TS = mask_B1TS if mask_B1TS.dtype == torch.bool else mask_B1TS == 0
    num_parts = ranks_of(group)
    heads = student.query_BHTE.shape[1] if spec.relation_heads == "auto" else spec.relation_heads // num_parts
    mine, theirs = resplit(student, heads), resplit(teacher, heads)
    total = torch.zeros(
        (), dtype=torch.promote_types(mine.query_BHTE.dtype, torch.float32), device=may_B1TS.device
    )
    for begin in range(0, may_B1TS.shape[2], ROWS):
        rows = slice(begin, begin + ROWS)
        log_q, log_p = _log_attention(mine, rows, may_B1TS), _log_attention(theirs, rows, may_B1TS)
        divergence_BRT = (log_p.exp() * (log_p - log_q)).masked_fill(~may_B1TS[:, :, rows], 0.0).sum(-1)
        total = total + (divergence_BRT.sum(1) * is_scored_BT[:, rows]).sum()
    total = total / (heads * num_parts)
    return total, summed(total.detach(), group)


def resplit(relations: Relations, heads: int) -> Relations:
    """Concatenate all heads of queries and keys and split them into `heads` heads (MiniLMv2, 2012.15828,
    section 3.1).
    """
    query, key = relations
    key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    if query.shape[1] == heads:
        return Relations(query, key)
    return Relations(
        *(x.transpose(1, 2).flatten(2).unflatten(2, (heads, -1)).transpose(1, 2) for x in (query, key))
    )


def _log_attention(relations: Relations, rows: slice, may_B1TS: Tensor) -> Tensor:
    """log softmax(q k^T / sqrt(E)) [B, R, T, S] in fp32 or more; 0 where attention is not allowed."""
    query, key = relations
    scores = (query[:, :, rows] * query.shape[-1] ** -0.5) @ key.transpose(2, 3)
    exact = torch.promote_types(scores.dtype, torch.float32)
    hidden_B1TS = ~may_B1TS[:, :, rows]
    return (
        scores.to(exact).masked_fill(hidden_B1TS, float("-inf")).log_softmax(-1).masked_fill(hidden_B1TS, 0.0)
    )
