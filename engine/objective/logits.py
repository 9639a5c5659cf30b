"""Distillation on logits: T^2 KL(softmax(teacher/T) || softmax(student/T)) of each token (1503.02531).

N scored tokens, V vocabulary; p is the teacher's distribution at temperature T, q the student's
"""

from torch import Tensor

from engine.objective.vocabulary import Slice, log_softmax, total
from engine.spec.error import ConfigError
from engine.spec.objective.logits import Logits


def token_loss(spec: Logits, logits_NV: Tensor, labels_N: Tensor, teacher_logits_NV: Tensor | None) -> Tensor:
    """T^2 sum_v p_v (log p_v - log q_v) [N], nats."""
    log_q_NV, log_p_NV = _softened(spec, logits_NV), _softened(spec, teacher_logits_NV)
    return spec.temperature**2 * (log_p_NV.exp() * (log_p_NV - log_q_NV)).sum(1)


def token_gradient(
    spec: Logits,
    logits_NV: Tensor,
    labels_N: Tensor,
    teacher_logits_NV: Tensor | None,
    part: Slice | None = None,
) -> tuple[Tensor, Tensor]:
    """`token_loss` [N] and its gradient T (q - p) [N, V]; compiles into few passes."""
    log_q_NV, log_p_NV = _softened(spec, logits_NV, part), _softened(spec, teacher_logits_NV, part)
    p_NV = log_p_NV.exp()
    loss_N = spec.temperature**2 * total(log_p_NV.sub_(log_q_NV).mul_(p_NV), part)
    return loss_N, log_q_NV.exp_().sub_(p_NV).mul_(spec.temperature)


def _softened(spec: Logits, logits_NV: Tensor | None, part: Slice | None = None) -> Tensor:
    """log softmax(logits / T); a division less where T is 1."""
    if logits_NV is None:
        raise ConfigError("objective.logits", "has no teacher", "set teacher=<role>")
    return log_softmax(logits_NV if spec.temperature == 1.0 else logits_NV / spec.temperature, part)
