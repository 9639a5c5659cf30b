"""Expert choice (engine/config/router/expert_choice.py): each expert takes its best tokens in groups of rows.

N tokens, X experts, K mean experts per token, S tokens of a group, C tokens of an expert in a group
"""

import torch
from torch import Tensor

from atelier.engine.config.experts import MixedBlocks
from atelier.engine.config.router.expert_choice import ExpertChoice
from atelier.engine.model.routing import MatrixRouter, Routed, TokenRows


class ExpertChoiceRouter(MatrixRouter):
    """A token gets the experts that chose it, possibly none, weighted by their probabilities. If tokens must
    not depend on each other (held-out text, generation), each gets its K most probable ones.
    """

    def route(self, x_ND: Tensor, rows: TokenRows) -> Routed:
        _, wide_NX = self.logits(x_ND)
        part_NX = wide_NX.softmax(-1)
        if rows.is_training:
            chosen_NK = self._chosen(part_NX.detach() * rows.is_text_N[:, None], rows)
        else:
            chosen_NK = part_NX.topk(self.per_token, dim=-1).indices
        share_NK = part_NX.gather(-1, chosen_NK.clamp(min=0)) * (chosen_NK >= 0)
        if self.is_sum:
            share_NK = (chosen_NK >= 0).to(part_NX.dtype)
        return Routed(chosen_NK, share_NK, wide_NX, {}, ((chosen_NK < 0).all(-1) & rows.is_text_N).sum())

    def _chosen(self, part_NX: Tensor, rows: TokenRows) -> Tensor:
        """[N, most experts of a token]: each token's experts in ascending order, then -1."""
        number = part_NX.shape[-1]
        part_GSX = part_NX.view(rows.count // self.group, -1, number)
        size = part_GSX.shape[1]
        count = max(1, min(size, self.per_token * size // number))
        best_GCX = part_GSX.topk(count, dim=1).indices
        none_GSX = torch.zeros_like(part_GSX, dtype=torch.bool)
        is_its_NX = none_GSX.scatter_(1, best_GCX, value=True).view(-1, number)
        most = int(is_its_NX.sum(-1).max())
        order_NK = is_its_NX.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)[:, :most]
        return order_NK.masked_fill(~is_its_NX.gather(-1, order_NK), -1)


def build(spec: MixedBlocks, _own: ExpertChoice, _number: int) -> ExpertChoiceRouter:
    return ExpertChoiceRouter(spec)
