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
    if torch.compiler.is_compiling():
        # no scatter: torch 2.13 loses it where it fuses this gradient with another objective's
        is_label_NV = torch.arange(logits_NV.shape[1], device=logits_NV.device) == labels_N1
        return loss_N, log_q_NV.exp() - is_label_NV.to(log_q_NV.dtype)
    return loss_N, log_q_NV.exp_().scatter_add_(1, labels_N1, torch.full_like(loss_N, -1.0)[:, None])
