"""Next-token cross-entropy of each token. N scored tokens, V vocabulary."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from engine.spec.objective.lm import LM


def token_loss(spec: LM, logits_NV: Tensor, labels_N: Tensor, teacher_logits_NV: Tensor | None) -> Tensor:
    """-log softmax(logits)[label] [N], nats."""
    return F.cross_entropy(logits_NV, labels_N, reduction="none")


def token_gradient(
    spec: LM, logits_NV: Tensor, labels_N: Tensor, teacher_logits_NV: Tensor | None
) -> tuple[Tensor, Tensor]:
    """`token_loss` [N] and its gradient softmax(logits) - onehot(label) [N, V], in fewer passes over the logits than autograd."""
    labels_N1 = labels_N[:, None]
    highest_N1 = logits_NV.amax(1, keepdim=True)
    gradient_NV = (logits_NV - highest_N1).exp_()
    total_N1 = gradient_NV.sum(1, keepdim=True)
    loss_N1 = total_N1.log() + highest_N1 - logits_NV.gather(1, labels_N1)
    gradient_NV.div_(total_N1).scatter_add_(1, labels_N1, torch.full_like(loss_N1, -1.0))
    return loss_N1[:, 0], gradient_NV
