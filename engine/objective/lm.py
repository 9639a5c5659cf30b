"""Next-token cross-entropy of each token. N scored tokens, V vocabulary."""

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.spec.objective.lm import LM


def token_loss(spec: LM, logits_NV: Tensor, labels_N: Tensor, teacher_logits_NV: Tensor | None) -> Tensor:
    """-log softmax(logits)[label] [N], nats."""
    return F.cross_entropy(logits_NV, labels_N, reduction="none")


def token_gradient(
    spec: LM, logits_NV: Tensor, labels_N: Tensor, teacher_logits_NV: Tensor | None
) -> tuple[Tensor, Tensor]:
    """`token_loss` [N] and its gradient softmax(logits) - onehot(label) [N, V]; compiles into few passes."""
    labels_N1 = labels_N[:, None]
    log_q_NV = logits_NV.log_softmax(1)
    loss_N = -log_q_NV.gather(1, labels_N1)[:, 0]
    return loss_N, log_q_NV.exp_().scatter_add_(
        1, labels_N1, torch.full_like(labels_N1, -1.0, dtype=log_q_NV.dtype)
    )
