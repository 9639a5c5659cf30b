"""Next-token cross-entropy of each token, and its z-loss. N scored tokens, V vocabulary.

With a weight z, the loss of a token is -log p[label] + z (log Z)^2, Z = sum_v exp(logits_v) (z-loss; PaLM,
2204.02311, section 5, with z = 1e-4).
"""

import torch.nn.functional as F
from torch import Tensor

from atelier.engine.config.registry import ObjectiveSpec
from atelier.engine.objective.vocab_slice import TokenDistribution, VocabSlice, at_labels, minus_one_at_labels


def z_weight(spec: ObjectiveSpec) -> float:
    """The weight of the z-loss; 0 for other objectives that this file computes."""
    return getattr(spec, "z_weight", 0.0)


def token_loss(
    spec: ObjectiveSpec, logits_NV: Tensor, labels_N: Tensor, teacher_log_p_NV: Tensor | None
) -> Tensor:
    """-log softmax(logits)[label], plus z (log Z)^2 [N], nats."""
    loss_N = F.cross_entropy(logits_NV, labels_N, reduction="none")
    return loss_N + z_weight(spec) * logits_NV.logsumexp(1) ** 2 if z_weight(spec) else loss_N


def token_gradient(
    spec: ObjectiveSpec,
    own: TokenDistribution,
    labels_N: Tensor,
    teacher: TokenDistribution | None,
    part: VocabSlice | None = None,
) -> tuple[Tensor, Tensor]:
    """`token_loss` [N] and its gradient (1 + 2 z log Z) softmax(logits) - onehot(label) [N, V]; compiles into
    few passes.
    """
    if not z_weight(spec):
        loss_N = -at_labels(own.log_p(), labels_N, part)
        return loss_N, minus_one_at_labels(own, labels_N, part)
    logit_N = at_labels(own.logits_NV, labels_N, part)  # before log_p, which may reuse their memory
    log_p_N = at_labels(own.log_p(), labels_N, part)
    log_z_N = logit_N - log_p_N
    scale_N1 = 1 + 2 * z_weight(spec) * log_z_N[:, None]
    return z_weight(spec) * log_z_N**2 - log_p_N, minus_one_at_labels(own, labels_N, part, scale_N1)
