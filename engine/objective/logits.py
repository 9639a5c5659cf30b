"""Distillation on logits: T^2 KL(softmax(teacher/T) || softmax(student/T)) of each token (1503.02531).

N scored tokens, V vocabulary; p is the teacher's distribution at temperature T, q the student's
"""

from torch import Tensor

from engine.objective.vocabulary import Slice, log_softmax, total
from engine.spec.error import ConfigError
from engine.spec.objective.logits import Logits


def token_loss(spec: Logits, logits_NV: Tensor, labels_N: Tensor, teacher_log_p_NV: Tensor | None) -> Tensor:
    """T^2 sum_v p_v (log p_v - log q_v) [N], nats."""
    log_q_NV = log_softmax(_warm(spec, logits_NV), None)
    log_p_NV = _taught(spec, teacher_log_p_NV, None)
    return spec.temperature**2 * (log_p_NV.exp() * (log_p_NV - log_q_NV)).sum(1)


def token_gradient(
    spec: Logits,
    logits_NV: Tensor,
    labels_N: Tensor,
    teacher_log_p_NV: Tensor | None,
    part: Slice | None = None,
) -> tuple[Tensor, Tensor]:
    """`token_loss` [N] and its gradient T (q - p) [N, V]; compiles into few passes."""
    log_q_NV = log_softmax(_warm(spec, logits_NV), part)
    log_p_NV = _taught(spec, teacher_log_p_NV, part)
    p_NV = log_p_NV.exp()
    loss_N = spec.temperature**2 * total((log_p_NV - log_q_NV).mul_(p_NV), part)
    return loss_N, log_q_NV.exp_().sub_(p_NV).mul_(spec.temperature)


def _warm(spec: Logits, logits_NV: Tensor) -> Tensor:
    return logits_NV if spec.temperature == 1.0 else logits_NV / spec.temperature


def _taught(spec: Logits, log_p_NV: Tensor | None, part: Slice | None) -> Tensor:
    """The teacher's log-probabilities at temperature T; not to be changed in place."""
    if log_p_NV is None:
        raise ConfigError("objective.logits", "has no teacher", "set teacher=<role>")
    return log_p_NV if spec.temperature == 1.0 else log_softmax(_warm(spec, log_p_NV), part)
