"""Row classification: cross-entropy of the first token's hidden state with the head of the objective's name.

B rows, D hidden, C classes
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from atelier.engine.config.batch import NOT_SCORED
from atelier.engine.config.registry import RowClasses
from atelier.engine.objective.chunked import TeacherSide
from atelier.engine.objective.load import RIGHT
from atelier.engine.objective.terms import State, Term

LOGGED = ("", RIGHT)


def terms(spec: RowClasses, state: State, teacher: TeacherSide | None, rows_B: Tensor | None) -> Term:
    """The loss of the rows that this objective reads, and how many it gets right."""
    classes_B = state.batch["classes_B"]
    if rows_B is not None:
        classes_B = classes_B.masked_fill(~rows_B, NOT_SCORED)
    if not state.has_first:
        classes_B = torch.full_like(classes_B, NOT_SCORED)
    head_CD = state.weight(f"classes.{spec.kind}.weight")
    total, value, num_right = state_sum(state.hidden_BTD[:, 0], head_CD, classes_B, state.group)
    return Term(total, {"": value, RIGHT: num_right})


def state_sum(
    first_BD: Tensor, head_CD: Tensor, classes_B: Tensor, group: dist.ProcessGroup | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """sum over the rows with a class of -log softmax(W h)_class, nats: differentiable, and its value; and the
    number of rows whose class has the largest logit. In a `group` every rank has the full sum, and its share
    of the hidden states' gradient.
    """
    if group is not None:
        size = dist.get_world_size(group)
        first_BD = first_BD.detach() + (first_BD - first_BD.detach()) / size
    exact = torch.promote_types(first_BD.dtype, torch.float32)
    logits_BC = F.linear(first_BD, head_CD).to(exact)
    total = F.cross_entropy(logits_BC, classes_B, ignore_index=NOT_SCORED, reduction="sum")
    num_right = ((logits_BC.argmax(1) == classes_B) & (classes_B != NOT_SCORED)).sum()
    return total, total.detach(), num_right
