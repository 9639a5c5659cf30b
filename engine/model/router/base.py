"""BASE layers (engine/config/router/base.py): assign equally many tokens to each expert, with the largest sum
of scores.

N tokens, X experts, S tokens of a group
"""

import torch
from torch import Tensor

from atelier.engine.config.experts import MixedBlocks
from atelier.engine.config.router.base import Base
from atelier.engine.model.routing import MatrixRouter, Routed, TokenRows


class BaseRouter(MatrixRouter):
    """One expert per token, weighted by the sigmoid of its score (2103.16716, section 3). If tokens must not
    depend on each other (held-out text, generation), each goes to its best expert.
    """

    def route(self, x_ND: Tensor, rows: TokenRows) -> Routed:
        _, wide_NX = self.logits(x_ND)
        if rows.is_training:
            text_NX = wide_NX.detach() * rows.is_text_N[:, None]  # padding may go to any expert
            score_GSX = text_NX.view(rows.count // self.group, -1, wide_NX.shape[-1])
            chosen_N1 = torch.cat([assigned(score_SX) for score_SX in score_GSX])[:, None]
        else:
            chosen_N1 = wide_NX.argmax(-1, keepdim=True)
        share_N1 = wide_NX.gather(-1, chosen_N1).sigmoid()
        return Routed(chosen_N1, torch.ones_like(share_N1) if self.is_sum else share_N1, wide_NX, {})


def assigned(score_SX: Tensor) -> Tensor:
    """[S] the expert of each token; each expert gets S / X tokens."""
    from scipy.optimize import linear_sum_assignment  # 0.3 s: only this router needs it

    size, number = score_SX.shape
    score_SX = score_SX.nan_to_num()  # otherwise it raises before the step's health is judged
    places_SS = score_SX.double().cpu().numpy().repeat(size // number, axis=1)
    _, place_S = linear_sum_assignment(places_SS, maximize=True)
    return torch.from_numpy(place_S // (size // number)).to(score_SX.device)


def build(spec: MixedBlocks, _own: Base, _number: int) -> BaseRouter:
    return BaseRouter(spec)
