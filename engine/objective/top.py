"""A teacher's answers for students at other sites: for every scored token, log-probabilities of its K most
likely next tokens and the mass of all others; with K = V, log-probabilities of the whole vocabulary. All are
at the link's temperature H: the others' mass at one temperature does not determine that at another.

In 8 bits, a log-probability is a whole number of sixteenths of a nat, at most 255; the others' mass is a
multiple of 1/65536. When read, the K probabilities are scaled so that the distribution sums to 1.

B rows, T tokens, M = B T, N scored tokens in order, C of a chunk, K tokens of an answer, V vocabulary
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from atelier.engine.config.batch import NOT_SCORED
from atelier.engine.config.error import DataError
from atelier.engine.io.tensorfile import NARROW
from atelier.engine.model.contract import compute_dtype
from atelier.engine.model.products import with_padding
from atelier.engine.objective.vocab_slice import TokenDistribution, without_padding

SIXTEENTHS, MOST_CODE = 16, 255  # sixteenths of a nat
MASSES = 1 << 16  # values of the others' mass
LOGITS = 1 << 22  # logits of a chunk
MASS_ERROR = {"8bit": 0.05, "exact": 1e-3}  # of a distribution's sum: 8-bit values are up to 3 % off


@dataclass(frozen=True)
class TopSide:
    """A teacher's answers for a micro-batch's scored tokens. `places_M`: a token's number among them."""

    places_M: Tensor
    values_NK: Tensor  # log-probabilities
    ids_NK: Tensor | None  # None: the whole vocabulary, in order
    others_N: Tensor | None  # log of the mass of all other tokens
    vocab: int
    heat: float = 1.0  # temperature H of the values

    def distribution(self, own: TokenDistribution, rows_C: Tensor) -> TokenDistribution:
        """The distribution of the tokens `rows_C` of the micro-batch. Mass of tokens outside an answer is
        spread as in the student's `own`: at temperature H the divergence then compares K tokens and all
        others as one, and teaches nothing about those.
        """
        places_C = self.places_M.index_select(0, rows_C)
        values_CK = self.values_NK.index_select(0, places_C).to(own.logits_NV.dtype)
        if self.ids_NK is None or self.others_N is None:
            columns = own.logits_NV.shape[1]
            is_padded = columns > self.vocab
            values_CV = without_padding(values_CK, self.vocab, columns) if is_padded else values_CK
            return TokenDistribution(values_CV * self.heat)
        ids_CK = self.ids_NK.index_select(0, places_C)
        others_C1 = self.others_N.index_select(0, places_C)[:, None].to(values_CK.dtype)
        rest_CV = own.log_p(self.heat).scatter(1, ids_CK, -torch.inf)
        rest_CV = rest_CV - rest_CV.logsumexp(1, keepdim=True) + others_C1
        return TokenDistribution(rest_CV.scatter(1, ids_CK, values_CK) * self.heat)


def places_of(labels_BT: Tensor) -> Tensor:
    """The number of each token among the scored ones [M]."""
    return (labels_BT.flatten() != NOT_SCORED).cumsum(0) - 1


@torch.no_grad()
def answers_of(
    hidden_BTD: Tensor,
    head_weight_VD: Tensor,
    labels_BT: Tensor,
    *,
    top: int,
    values: str,
    heat: float = 1.0,
) -> dict[str, Tensor]:
    """A teacher's answers for the scored tokens of a micro-batch, as sent, but with ids as int32. With `top`
    = V without ids and others. `head_weight_VD`: without padding rows.
    """
    rows_N = (labels_BT.flatten() != NOT_SCORED).nonzero()[:, 0]
    compute, vocab = compute_dtype(head_weight_VD), head_weight_VD.shape[0]
    head_DV = head_weight_VD.to(compute).t()
    found: list[dict[str, Tensor]] = []
    for rows_C in rows_N.split(max(1, LOGITS // vocab)):
        hidden_CD = hidden_BTD.flatten(0, 1).index_select(0, rows_C).to(compute)
        logits_CV = (with_padding(hidden_CD) @ head_DV)[: len(rows_C)]
        found.append(_answers((logits_CV.to(exact_type(compute)) / heat).log_softmax(1), top, values))
    if not found:
        found = [_answers(head_DV.new_zeros(0, vocab, dtype=exact_type(compute)), top, values)]
    return {name: torch.cat([each[name] for each in found]) for name in found[0]}


def exact_type(compute: torch.dtype) -> torch.dtype:
    return torch.float64 if compute == torch.float64 else torch.float32


def _answers(log_p_CV: Tensor, top: int, values: str) -> dict[str, Tensor]:
    if top == log_p_CV.shape[1]:
        return {"values_NK": _coded(log_p_CV, values)}
    values_CK, ids_CK = log_p_CV.topk(top, dim=1)
    others_C = log_p_CV.scatter(1, ids_CK, -torch.inf).logsumexp(1)
    if values == "8bit":
        others_C = (others_C.exp() * MASSES).floor().clamp(0, MASSES - 1).int()
    return {"ids_NK": ids_CK.int(), "others_N": others_C, "values_NK": _coded(values_CK, values)}


def _coded(log_p: Tensor, values: str) -> Tensor:
    if values == "exact":
        return log_p
    return (log_p * -SIXTEENTHS).round().clamp(0, MOST_CODE).to(torch.uint8)


def types(vocab: int, top: int, values: str, exact: torch.dtype) -> dict[str, torch.dtype]:
    """The types of the tensors that are sent."""
    is_short = values == "8bit"
    found = {"values_NK": torch.uint8 if is_short else exact}
    if top < vocab:
        found["ids_NK"] = torch.uint16 if vocab <= NARROW else torch.int32
        found["others_N"] = torch.uint16 if is_short else exact
    return found


def kept_mass(others_N: Tensor, values: str) -> float:
    """The mean mass of the K tokens at the answers' temperature."""
    return 1 - float(_read(others_N, values).exp().mean())


def _read(others_N: Tensor, values: str) -> Tensor:
    """The logarithm of the others' mass, decoded."""
    return others_N.double() if values == "exact" else ((others_N.double() + 0.5) / MASSES).log()


def side_of(
    sent: Mapping[str, Tensor],
    labels_BT: Tensor,
    *,
    vocab: int,
    values: str,
    place: str,
    heat: float = 1.0,
) -> TopSide:
    """The students' side for a micro-batch, from the answers sent for its scored tokens. Raises DataError,
    naming `place`, if they are not a distribution over the vocabulary.
    """
    values_NK = sent["values_NK"].to(labels_BT.device)
    ids_NK = sent["ids_NK"].to(labels_BT.device, torch.int64) if "ids_NK" in sent else None
    others_N = sent["others_N"].to(labels_BT.device) if "others_N" in sent else None
    if ids_NK is not None and len(ids_NK):
        if int(ids_NK.min()) < 0 or int(ids_NK.max()) >= vocab:
            raise DataError(f"{place}: an id is not below the vocabulary of {vocab}")
        if (ids_NK.sort(1).values.diff(dim=1) == 0).any():
            raise DataError(f"{place}: an answer has an id twice")
    if values == "8bit":
        values_NK = values_NK.double() / -SIXTEENTHS
        others_N = None if others_N is None else _read(others_N, values)
    for name, each in (("a value", values_NK), ("the mass of the others", others_N)):
        if each is not None and not (torch.isfinite(each).all() and (each <= 0).all()):
            raise DataError(f"{place}: {name} is not a log-probability")
    total_N = values_NK.double().exp().sum(1)
    left_N = torch.zeros_like(total_N) if others_N is None else others_N.double().exp()
    coarse = values_NK.shape[1] * math.exp(-MOST_CODE / SIXTEENTHS) if values == "8bit" else 0.0
    if (
        (total_N + left_N - 1).abs() > MASS_ERROR[values] + coarse
    ).any():  # the lowest code stands for all smaller values
        raise DataError(f"{place}: the probabilities of an answer do not sum to 1")
    if values == "8bit":
        values_NK = values_NK - total_N.log()[:, None] + (-left_N).log1p()[:, None]
    return TopSide(places_of(labels_BT), values_NK, ids_NK, others_N, vocab, heat)
