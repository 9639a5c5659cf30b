"""Next-token cross-entropy of each token. N scored tokens, V vocabulary."""

import torch.nn.functional as F
from torch import Tensor

from atelier.engine.config.objective.lm import LM
from atelier.engine.objective.vocab_slice import TokenDistribution, VocabSlice, at_labels, minus_one_at_labels


def token_loss(spec: LM, logits_NV: Tensor, labels_N: Tensor, teacher_log_p_NV: Tensor | None) -> Tensor:
    """-log softmax(logits)[label] [N], nats."""
    return F.cross_entropy(logits_NV, labels_N, reduction="none")


def token_gradient(
    spec: LM,
    own: TokenDistribution,
    labels_N: Tensor,
    teacher: TokenDistribution | None,
    part: VocabSlice | None = None,
) -> tuple[Tensor, Tensor]:
    """`token_loss` [N] and its gradient softmax(logits) - onehot(label) [N, V]; compiles into few passes."""
    loss_N = -at_labels(own.log_p(), labels_N, part)
    return loss_N, minus_one_at_labels(own, labels_N, part)
