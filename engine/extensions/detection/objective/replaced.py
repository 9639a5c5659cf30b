"""Replaced-token detection: -log sigmoid(w . h) for a replaced token, otherwise -log(1 - sigmoid(w . h))
(ELECTRA, 2003.10555, section 2). A drawn token equal to the hidden one counts as not replaced.

A row's tokens are the generator's where its labels are, otherwise the text's.

B rows, T tokens, D hidden
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from atelier.engine.config.batch import NOT_SCORED
from atelier.engine.extensions.detection.config.objective.replaced import Replaced
from atelier.engine.objective.chunked import Side
from atelier.engine.objective.load import RIGHT, SHARE
from atelier.engine.objective.terms import State, Term
from atelier.engine.objective.vocab_slice import ranks_of

LOGGED = ("", RIGHT, SHARE)


def terms(spec: Replaced, state: State, teacher: Side | None, rows_B: Tensor | None) -> Term:
    """Over all tokens of its rows: the loss, the number of right ones, the number of replaced ones."""
    is_read_BT = state.batch["documents_BT"] >= 0
    if rows_B is not None:
        is_read_BT = is_read_BT & rows_B[:, None]
    is_replaced_BT = replaced(state.batch["tokens_BT"], state.batch["labels_BT"]) & is_read_BT
    logits_BT = detection_logits(
        state.hidden_BTD, state.weight(f"classes.{spec.kind}.weight"), share=ranks_of(state.group)
    )
    loss_BT = F.binary_cross_entropy_with_logits(
        logits_BT, is_replaced_BT.to(logits_BT.dtype), reduction="none"
    )
    total = loss_BT.masked_fill(~is_read_BT, 0.0).sum()
    is_right_BT = ((logits_BT > 0) == is_replaced_BT) & is_read_BT
    return Term(total, {"": total.detach(), RIGHT: is_right_BT.sum(), SHARE: is_replaced_BT.sum()})


def replaced(tokens_BT: Tensor, labels_BT: Tensor) -> Tensor:
    """[B, T] mask of tokens that differ from the text's, which labels give."""
    return (labels_BT != NOT_SCORED) & (tokens_BT != labels_BT)


def detection_logits(hidden_BTD: Tensor, weight_1D: Tensor, *, share: int = 1) -> Tensor:
    """[B, T] logits of being replaced, in float32 or more. Each of `share` ranks has them whole, with its
    share of the hidden states' gradient.
    """
    exact = torch.promote_types(hidden_BTD.dtype, torch.float32)
    if share > 1:
        hidden_BTD = hidden_BTD.detach() + (hidden_BTD - hidden_BTD.detach()) / share
    return F.linear(hidden_BTD, weight_1D)[..., 0].to(exact)
