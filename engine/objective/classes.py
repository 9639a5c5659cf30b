"""Row classification: cross-entropy of the first token's hidden state with the head of the objective's name.

B rows, D hidden, C classes
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

UNSCORED = -100


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
    total = F.cross_entropy(logits_BC, classes_B, ignore_index=UNSCORED, reduction="sum")
    num_right = ((logits_BC.argmax(1) == classes_B) & (classes_B != UNSCORED)).sum()
    return total, total.detach(), num_right
