"""Next-token cross-entropy of each token. N scored tokens, V vocabulary."""

import torch.nn.functional as F
from torch import Tensor

from engine.objective.vocabulary import Slice, at_labels, log_softmax, minus_one_at_labels
from engine.spec.objective.lm import LM


def token_loss(spec: LM, logits_NV: Tensor, labels_N: Tensor, teacher_log_p_NV: Tensor | None) -> Tensor:
    """-log softmax(logits)[label] [N], nats."""
    return F.cross_entropy(logits_NV, labels_N, reduction="none")


def token_gradient(
    spec: LM,
    logits_NV: Tensor,
    labels_N: Tensor,
    teacher_log_p_NV: Tensor | None,
    part: Slice | None = None,
) -> tuple[Tensor, Tensor]:
    """`token_loss` [N] and its gradient softmax(logits) - onehot(label) [N, V]; compiles into few passes."""
    log_q_NV = log_softmax(logits_NV, part)
    loss_N = -at_labels(log_q_NV, labels_N, part)
    return loss_N, minus_one_at_labels(log_q_NV.exp_(), labels_N, part)
