"""A plain model together with what is computed from its hidden states, so that sharding sees one root.

B rows, T tokens, D hidden, V vocab
"""

from typing import NamedTuple

from torch import Tensor, nn

from engine.objective.chunked import Mix, TeacherSide, objective_sums


class Forward(NamedTuple):
    total: Tensor  # scalar: sum over scored tokens of the mixed objectives
    sums: dict[str, Tensor]  # scalars: plain sums by objective, always with "lm"
    hidden_BTD: Tensor  # detached
    head_weight_VD: Tensor  # detached


class Learner(nn.Module):
    """forward(batch) -> objectives, inside the root's forward: only there is a sharded head whole."""

    def __init__(self, model: nn.Module, *, is_compiled: bool) -> None:
        super().__init__()
        self.model, self.is_compiled = model, is_compiled

    def forward(self, batch: dict[str, Tensor], mix: Mix, teacher: TeacherSide | None) -> Forward:
        hidden_BTD = self.model(batch).hidden
        head_weight_VD: Tensor = self.model.head_weight  # type: ignore[assignment]
        labels_BT = batch["labels_BT"]
        total, sums = objective_sums(
            hidden_BTD, head_weight_VD, labels_BT, mix, teacher, compiled=self.is_compiled
        )
        return Forward(total, sums, hidden_BTD.detach(), head_weight_VD.detach())
