"""Replaced-token detection by its definition, and tokens drawn from a distribution."""

import math

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from atelier.engine.extensions.detection import gumbel
from atelier.engine.extensions.detection.config.objective.replaced import Replaced
from atelier.engine.extensions.detection.objective.replaced import terms
from atelier.engine.model.contract import Output
from atelier.engine.model.transformer import noise_keys
from atelier.engine.objective.terms import State, Term
from atelier.engine.objective.vocab_slice import VocabSlice

B, T, D, V = 3, 7, 4, 11


def state(hidden_BTD: Tensor, weight_1D: Tensor) -> tuple[State, Tensor]:
    """Row 0 has hidden tokens, one drawn as it was, and padding; row 1 none; row 2 is of another kind, with
    next tokens as labels.
    """
    tokens_BT = torch.arange(B * T).view(B, T) % V
    labels_BT = torch.full((B, T), -100)
    labels_BT[0, 2], labels_BT[0, 4], labels_BT[2] = tokens_BT[0, 2], (tokens_BT[0, 4] + 1) % V, 0
    documents_BT = torch.zeros(B, T, dtype=torch.int64)
    documents_BT[0, 6] = -1
    batch = {"tokens_BT": tokens_BT, "labels_BT": labels_BT, "documents_BT": documents_BT}
    found = State(
        output=Output(hidden=hidden_BTD),
        hidden_BTD=hidden_BTD,
        head_weight_VD=torch.empty(V, D),
        batch=batch,
        weight={"classes.replaced.weight": weight_1D}.__getitem__,
        whole_keys=lambda relations: relations,
        over_context=lambda part: part,
    )
    return found, torch.tensor([True, True, False])


def random_states() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(B, T, D, generator=generator, dtype=torch.float64, requires_grad=True)
    return hidden, torch.randn(1, D, generator=generator, dtype=torch.float64, requires_grad=True)


def computed(hidden_BTD: Tensor, weight_1D: Tensor) -> Term:
    found, rows_B = state(hidden_BTD, weight_1D)
    return terms(Replaced(), found, None, rows_B)


def test_the_loss_is_the_binary_cross_entropy_of_every_token_of_its_rows() -> None:
    hidden_BTD, weight_1D = random_states()
    term, expected, right = computed(hidden_BTD, weight_1D), 0.0, 0
    for row, place in ((row, place) for row in (0, 1) for place in range(T) if (row, place) != (0, 6)):
        sure = 1 / (1 + math.exp(-float((weight_1D[0] @ hidden_BTD[row, place]).detach())))
        is_replaced = (row, place) == (0, 4)
        expected -= math.log(sure if is_replaced else 1 - sure)
        right += (sure > 0.5) == is_replaced
    assert float(term.total.detach()) == pytest.approx(expected, abs=1e-12)
    assert [float(term.sums[name]) for name in (".right", ".share")] == [right, 1]


def test_the_gradient_is_that_of_finite_differences() -> None:
    hidden_BTD, weight_1D = random_states()
    assert torch.autograd.gradcheck(lambda h, w: computed(h, w).total, (hidden_BTD, weight_1D))


def test_tokens_are_drawn_as_often_as_the_model_says() -> None:
    generator = torch.Generator().manual_seed(1)
    hidden_1D = torch.randn(1, D, generator=generator, dtype=torch.float64)
    head_VD = torch.randn(V, D, generator=generator, dtype=torch.float64)
    number = 40_000
    keys_N = noise_keys(7, torch.arange(number // 100), torch.arange(100)).flatten()
    ids_N = gumbel.drawn(hidden_1D.expand(number, D), head_VD, keys_N, num_ids=V - 2)
    expected = (hidden_1D @ head_VD[: V - 2].t()).softmax(1)[0]
    counts = torch.bincount(ids_N, minlength=V)
    assert counts[V - 2 :].sum() == 0  # padding of the vocabulary
    squares = ((counts[: V - 2] - number * expected) ** 2 / (number * expected)).sum()
    assert squares < 26.1  # chi squared with 8 degrees of freedom, p = 0.001


def test_a_draw_depends_on_its_key_and_logits_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not on the other places, their order, or the chunks."""
    generator = torch.Generator().manual_seed(2)
    hidden_ND = torch.randn(50, D, generator=generator, dtype=torch.float64)
    head_VD = torch.randn(V, D, generator=generator, dtype=torch.float64)
    keys_N = noise_keys(3, torch.arange(10), torch.arange(5)).flatten()
    whole = gumbel.drawn(hidden_ND, head_VD, keys_N, num_ids=V)
    order = torch.randperm(50, generator=generator)[:17]
    assert torch.equal(gumbel.drawn(hidden_ND[order], head_VD, keys_N[order], num_ids=V), whole[order])
    monkeypatch.setattr(gumbel, "LOGITS", 4 * V)
    assert torch.equal(gumbel.drawn(hidden_ND, head_VD, keys_N, num_ids=V), whole)
    assert not torch.equal(gumbel.drawn(hidden_ND, head_VD, keys_N + 1, num_ids=V), whole)
    assert len(gumbel.drawn(hidden_ND[:0], head_VD, keys_N[:0], num_ids=V)) == 0


class OnlyRank(VocabSlice):
    """The slice of one rank, which needs no group."""

    def __init__(self, begin: int) -> None:
        super().__init__(group=dist.ProcessGroup(0, 1), begin=begin, size=V)

    def max(self, part: Tensor) -> Tensor:
        return part


@pytest.mark.parametrize("begin", [0, V])  # of ids, or of padding
def test_a_draw_of_a_step_that_is_skipped_is_a_token(begin: int) -> None:
    hidden_ND, head_VD, keys_N = torch.ones(5, D), torch.ones(V, D), torch.arange(5)
    good = gumbel.drawn(hidden_ND, head_VD, keys_N, num_ids=V, part=OnlyRank(0))
    hidden_ND[3] = torch.nan
    ids_N = gumbel.drawn(hidden_ND, head_VD, keys_N, num_ids=V, part=OnlyRank(begin))
    assert 0 <= ids_N[3] < V
    assert begin or torch.equal(ids_N[[0, 1, 2, 4]], good[[0, 1, 2, 4]])
