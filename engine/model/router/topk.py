"""Token choice (engine/config/router/topk.py): the K best experts of each token.

N tokens, X experts, K experts per token, B rows
"""

import torch
from torch import Tensor

from atelier.engine.config.experts import Combine, MixedBlocks
from atelier.engine.config.router.topk import TopK
from atelier.engine.model.routing import MatrixRouter, Routed, TokenRows, combined, first_come


class TopKRouter(MatrixRouter):
    """Logits by a matrix; a bias used only for the choice; losses that balance the experts."""

    load: Tensor
    bias: Tensor

    def __init__(self, spec: MixedBlocks, own: TopK) -> None:
        super().__init__(spec)
        self.own = own
        self.combine: Combine = spec.experts.combine
        for name in own.buffers:
            self.register_buffer(name, torch.zeros(spec.num_experts))

    def route(self, x_ND: Tensor, rows: TokenRows) -> Routed:
        logits_NX, wide_NX = self.logits(x_ND)
        score_NX = wide_NX.sigmoid() if self.own.score == "sigmoid" else None
        choice_NX = logits_NX if score_NX is None else score_NX
        if self.own.balance == "bias":  # the bias needs scores of one scale: probabilities, not logits
            choice_NX = (wide_NX.softmax(-1) if score_NX is None else score_NX) + self.bias.to(wide_NX.dtype)
        chosen_NK = self._within_groups(choice_NX).topk(self.per_token, dim=-1).indices
        share_NK = combined(wide_NX, score_NX, chosen_NK, self.combine)
        sums = self._losses(wide_NX, score_NX, chosen_NK, rows) if rows.is_training else {}
        if self.own.capacity and rows.is_training:
            chosen_NK = first_come(chosen_NK, rows, self.group, wide_NX.shape[-1], self.own.capacity)
        lost = (chosen_NK[rows.is_text_N] < 0).sum() if self.own.capacity else 0
        return Routed(chosen_NK, share_NK, wide_NX, sums, lost)

    def _within_groups(self, choice_NX: Tensor) -> Tensor:
        """The scores, with -inf outside a token's best groups; a group's score is the sum of its two best
        experts (2412.19437, section 2.1.2).
        """
        own = self.own
        if own.groups == 1 or own.groups_per_token == own.groups:
            return choice_NX
        by_group = choice_NX.unflatten(-1, (own.groups, -1))
        worth_NG = by_group.topk(min(2, by_group.shape[-1]), dim=-1).values.sum(-1)
        best = worth_NG.topk(own.groups_per_token, dim=-1).indices
        is_in = torch.zeros_like(worth_NG, dtype=torch.bool).scatter(-1, best, value=True)
        return by_group.masked_fill(~is_in[..., None], -torch.inf).flatten(-2)

    def _losses(
        self, logits_NX: Tensor, score_NX: Tensor | None, chosen_NK: Tensor, rows: TokenRows
    ) -> dict[str, Tensor]:
        """Sums over tokens: X sum_x f_x p_x, which is 1 if all experts are equally loaded (2101.03961,
        equation 4, per token), with f from the token's row or from the last step.
        """
        found: dict[str, Tensor] = {}
        is_text_N1 = rows.is_text_N[:, None].to(logits_NX.dtype)
        if "router_z" in self.own.sums:
            found["router_z"] = (logits_NX.logsumexp(-1, keepdim=True).square() * is_text_N1).sum()
        if "balance" in self.own.sums:
            part_NX = logits_NX.softmax(-1) if score_NX is None else score_NX / score_NX.sum(-1, keepdim=True)
            part_NX, number = part_NX * is_text_N1, part_NX.shape[-1]
            if self.own.balance == "row":
                load_BX = part_NX.new_zeros(rows.count, number)
                chosen_BK = chosen_NK.view(rows.count, -1)
                is_text_BK = is_text_N1.expand_as(chosen_NK).reshape(rows.count, -1)
                load_BX.scatter_add_(1, chosen_BK, is_text_BK)
                share_BX = load_BX / is_text_BK.sum(1, keepdim=True).clamp(min=1)
                found["balance"] = number * (share_BX * part_NX.view(rows.count, -1, number).sum(1)).sum()
            else:
                known = self.load.sum()
                share_X = torch.where(known > 0, self.load / known.clamp(min=1), 1 / number)
                found["balance"] = number * (share_X.to(part_NX.dtype) * part_NX.sum(0)).sum()
        return found

    def learn_loads(self, load_X: Tensor) -> None:
        """Called after a step with the loads of the global batch, for balancing the next step."""
        if self.own.balance == "batch":
            self.load.copy_(load_X)
        if self.own.balance == "bias":  # 2408.15664
            self.bias += self.own.balance_weight * (load_X.mean() - load_X).sign().to(self.bias.dtype)


def build(spec: MixedBlocks, own: TopK, _number: int) -> TopKRouter:
    return TopKRouter(spec, own)
