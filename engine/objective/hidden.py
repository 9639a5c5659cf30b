"""Distillation on hidden states: mean squared error of each scored token.

B rows, T tokens, D the teacher's width (this rank's slice of it, if matrices are split over ranks)
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from atelier.engine.config.objective.hidden import Hidden
from atelier.engine.objective.vocab_slice import summed


def state_sum(
    spec: Hidden,
    hidden_BTC: Tensor,
    projection_DC: Tensor,
    teacher_BTD: Tensor,
    is_scored_BT: Tensor,
    group: dist.ProcessGroup | None = None,
) -> tuple[Tensor, Tensor]:
    """sum over scored tokens of mean_d ((W h)_d - t_d)^2: differentiable, and its value. In a `group` each
    rank has some rows of W: the first result is this rank's share, the second the full sum.
    """
    width = teacher_BTD.shape[-1]
    size = projection_DC.shape[0]
    begin = 0 if group is None else dist.get_rank(group) * size
    wanted_BTD = teacher_BTD.detach()[..., begin : begin + size]
    found_BTD = F.linear(hidden_BTC, projection_DC)
    exact = torch.promote_types(found_BTD.dtype, torch.float32)
    squares_BT = (found_BTD.to(exact) - wanted_BTD.to(exact)).square().sum(-1)
    total = (squares_BT * is_scored_BT).sum() / width
    return total, summed(total.detach(), group)
