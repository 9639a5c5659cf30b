"""Row classification: cross-entropy with the head of the objective's name on the first token's hidden state.

A class that relates pairs of segments (`RowClasses.comparisons`) also adds how well those fit: q_i . k_j /
sqrt(W), with q from the last token of segment i and k from the first token of segment j. The papers (ERNIE
3.0, 2107.02137) have only the first token's head; pairs are ours.

B rows, T tokens, S tokens of whole rows, D hidden, C classes, N segments, R relations, W width of each
"""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from atelier.engine.config.batch import NOT_SCORED, PLACES
from atelier.engine.config.row_classes import RowClasses
from atelier.engine.objective.chunked import TeacherSide
from atelier.engine.objective.load import RIGHT
from atelier.engine.objective.terms import State, Term
from atelier.engine.objective.vocab_slice import ranks_of

LOGGED = ("", RIGHT)


def terms(spec: RowClasses, state: State, teacher: TeacherSide | None, rows_B: Tensor | None) -> Term:
    """The loss of the rows that this objective reads, and the number of right ones."""
    classes_B = state.batch["classes_B"]
    if rows_B is not None:
        classes_B = classes_B.masked_fill(~rows_B, NOT_SCORED)
    if not state.has_first:
        classes_B = torch.full_like(classes_B, NOT_SCORED)
    share = ranks_of(state.group)
    has_pairs = f"pairs.{spec.kind}.end.weight" in state.output.weights
    logits_BC = class_logits(
        spec, state.hidden_BTD, state.batch, state.weight, has_pairs=has_pairs, share=share,
        over_context=state.over_context,
    )  # fmt: skip
    total, value, num_right = logits_sum(logits_BC, classes_B)
    return Term(total, {"": value, RIGHT: num_right})


def class_logits(
    spec: RowClasses,
    hidden_BTD: Tensor,
    batch: Mapping[str, Tensor],
    weight: Callable[[str], Tensor],
    *,
    has_pairs: bool,
    share: int = 1,
    over_context: Callable[[Tensor], Tensor] = lambda part: part,
) -> Tensor:
    """[B, C] logits of a row's classes, in float32 or more. Each of `share` ranks has them whole, with its
    share of the hidden states' gradient. `over_context` sums over ranks with tokens of the same rows.
    """
    exact = torch.promote_types(hidden_BTD.dtype, torch.float32)
    first_BD = _shared(hidden_BTD[:, 0], share)
    logits_BC = F.linear(first_BD, weight(f"classes.{spec.kind}.weight")).to(exact)
    if not has_pairs:
        return logits_BC
    says = [(kind, *said) for kind, found in enumerate(spec.comparisons) for said in found]
    number, relations = 1 + max(max(i, j) for _, _, i, j in says), spec.num_relations
    states = torch.cat([_states(hidden_BTD, is_edge) for is_edge in _edges(batch, number)], dim=1)
    end_BND, begin_BND = _shared(over_context(states), share).chunk(2, dim=1)
    query_BNX = F.linear(end_BND, weight(f"pairs.{spec.kind}.end.weight")).to(exact)
    key_BNX = F.linear(begin_BND, weight(f"pairs.{spec.kind}.begin.weight")).to(exact)
    query_BRNW, key_BRNW = (x.unflatten(2, (relations, -1)).transpose(1, 2) for x in (query_BNX, key_BNX))
    fit_BRNN = query_BRNW @ key_BRNW.mT * query_BRNW.shape[-1] ** -0.5
    says_CRNN = fit_BRNN.new_zeros(len(spec.comparisons), relations, number, number)
    says_CRNN[tuple(zip(*says, strict=True))] = 1
    return logits_BC + torch.einsum("brij,crij->bc", fit_BRNN, says_CRNN)


def _shared(state: Tensor, share: int) -> Tensor:
    return state if share == 1 else state.detach() + (state - state.detach()) / share


def _states(hidden_BTD: Tensor, is_edge_BNT: Tensor) -> Tensor:
    """[B, N, D] hidden state at each segment's edge token; 0 if this rank does not have it."""
    places_BN1 = is_edge_BNT.to(torch.uint8).argmax(2, keepdim=True)
    found_BND = hidden_BTD.gather(1, places_BN1.expand(-1, -1, hidden_BTD.shape[2]))
    return torch.where(is_edge_BNT.any(2, keepdim=True), found_BND, 0)


def _edges(batch: Mapping[str, Tensor], number: int) -> tuple[Tensor, Tensor]:
    """Two [B, N, T] masks: whether a token is the last, and the first, of its segment in the whole row."""
    segments_BS = batch.get("segments_BS", batch["segments_BT"])
    outside = segments_BS.new_full((len(segments_BS), 1), -1)
    is_last_BS = segments_BS != torch.cat([segments_BS[:, 1:], outside], dim=1)
    is_first_BS = segments_BS != torch.cat([outside, segments_BS[:, :-1]], dim=1)
    found = []
    for is_edge_BS in (is_last_BS, is_first_BS):
        edges_BS = torch.where(is_edge_BS, segments_BS, -1)
        here_BT = edges_BS[:, batch[PLACES["T"]]] if PLACES["T"] in batch else edges_BS
        found.append(here_BT[:, None] == torch.arange(number, device=here_BT.device)[:, None])
    return found[0], found[1]


def logits_sum(logits_BC: Tensor, classes_B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """sum over rows with a class of -log softmax(logits)_class, nats: differentiable, and its value; and the
    number of rows whose class has the largest logit.
    """
    total = F.cross_entropy(logits_BC, classes_B, ignore_index=NOT_SCORED, reduction="sum")
    num_right = ((logits_BC.argmax(1) == classes_B) & (classes_B != NOT_SCORED)).sum()
    return total, total.detach(), num_right
