"""Distillation of logits: T^2 KL(softmax(teacher/T) || softmax(student/T)) of each token (1503.02531).

N scored tokens, V vocabulary; p is the teacher's distribution at temperature T, q the student's
"""

from torch import Tensor

from atelier.engine.config.error import ConfigError
from atelier.engine.config.objective.logits import Logits
from atelier.engine.objective.vocab_slice import TokenDistribution, VocabSlice, total


def token_loss(spec: Logits, logits_NV: Tensor, labels_N: Tensor, teacher_log_p_NV: Tensor | None) -> Tensor:
    """T^2 sum_v p_v (log p_v - log q_v) [N], nats. Raises ConfigError without a teacher."""
    heat, teacher = (
        spec.temperature,
        None if teacher_log_p_NV is None else TokenDistribution(teacher_log_p_NV),
    )
    log_q_NV, log_p_NV = TokenDistribution(logits_NV).log_p(heat), _there(teacher).log_p(heat)
    return heat**2 * (log_p_NV.exp() * (log_p_NV - log_q_NV)).sum(1)


def token_gradient(
    spec: Logits,
    own: TokenDistribution,
    labels_N: Tensor,
    teacher: TokenDistribution | None,
    part: VocabSlice | None = None,
) -> tuple[Tensor, Tensor]:
    """`token_loss` [N] and its gradient T (q - p) [N, V]; compiles into few passes."""
    heat, teacher = spec.temperature, _there(teacher)
    p_NV = teacher.p(heat)
    loss_N = heat**2 * total((teacher.log_p(heat) - own.log_p(heat)).mul_(p_NV), part)
    gradient_NV = own.p(heat) - p_NV
    return loss_N, gradient_NV if heat == 1.0 else gradient_NV.mul_(heat)


def _there(teacher: TokenDistribution | None) -> TokenDistribution:
    if teacher is None:
        raise ConfigError("objective.logits", "has no teacher", "set teacher=<role>")
    return teacher
