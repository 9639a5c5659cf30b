"""A plain model together with what is computed from its hidden states, so that sharding sees one root.

B rows, T tokens, D hidden, V vocab
"""

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor, nn

from engine.objective.chunked import TeacherSide, objective_sums
from engine.spec.base import Spec

Mix = Mapping[str, tuple[Spec, float]]  # objective by name, with its share


class Forward(NamedTuple):
    total: Tensor  # scalar: sum over scored tokens of the mixed objectives
    sums: dict[str, Tensor]  # scalars: plain sums by objective, always with "lm"
    hidden_BTD: Tensor  # detached
    head_weight_VD: Tensor  # detached


class Learner(nn.Module):
    """forward(batch) -> objectives, inside the root's forward: only there is a sharded head whole."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: dict[str, Tensor], mix: Mix, teacher: TeacherSide | None) -> Forward:
        hidden_BTD = self.model(batch).hidden
        head_weight_VD: Tensor = self.model.head_weight  # type: ignore[assignment]
        total, sums = objective_sums(hidden_BTD, head_weight_VD, batch["labels_BT"], dict(mix), teacher)
        return Forward(total, sums, hidden_BTD.detach(), head_weight_VD.detach())
