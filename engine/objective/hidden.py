"""Distillation of hidden states: mean squared error per scored token, with the student's states projected to
the teacher's width (FitNets, 1412.6550, section 2.2).

B rows, T tokens, D the teacher's width (this rank's slice of it, if matrices are split over ranks)
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from atelier.engine.config.batch import NOT_SCORED
from atelier.engine.config.error import ConfigError
from atelier.engine.config.objective.hidden import Hidden
from atelier.engine.model.auxiliary import PROJECTION, add_projection
from atelier.engine.objective.chunked import TeacherSide
from atelier.engine.objective.terms import State, Term
from atelier.engine.objective.vocab_slice import summed


def add_modules(model: nn.Module, spec: Hidden, *, teacher_hidden: int) -> None:
    """Give a student's plain model the projection to the teacher's width, in place."""
    add_projection(model, teacher_hidden)


def terms(spec: Hidden, state: State, teacher: TeacherSide | None, rows_B: Tensor | None) -> Term:
    """The squared error of all scored tokens' hidden states. Raises ConfigError without a teacher."""
    if teacher is None:
        raise ConfigError("objective.hidden", "has no teacher", "set teacher=<role>")
    projection_DC = state.weight(f"{PROJECTION}.weight")
    is_scored_BT = state.batch["labels_BT"] != NOT_SCORED
    if rows_B is not None:
        is_scored_BT = is_scored_BT & rows_B[:, None]
    total, value = state_sum(
        spec, state.hidden_BTD, projection_DC, teacher.hidden_BTD, is_scored_BT, state.group
    )
    return Term(total, {"": value})


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
