"""Answers with fewer tokens than the vocabulary: compared as K tokens and the mass of all others, at the
temperature of the comparison.
"""

import pytest
import torch
from torch import Tensor

from atelier.engine.config.objective.logits import Logits
from atelier.engine.objective.logits import token_gradient
from atelier.engine.objective.top import TopSide, answers_of, kept_mass, side_of
from atelier.engine.objective.vocab_slice import TokenDistribution

N, D, V, K = 24, 16, 512, 8


def drawn(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden states, a head, labels and a student's logits."""
    torch.manual_seed(seed)
    hidden_BTD, head_VD = torch.randn(1, N, D, dtype=torch.float64), torch.randn(V, D, dtype=torch.float64)
    return hidden_BTD, head_VD, torch.zeros(1, N, dtype=torch.int64), torch.randn(N, V, dtype=torch.float64)


def side(heat: float, top: int, values: str) -> tuple[TopSide, Tensor, Tensor, float]:
    """A teacher's side, its logits, a student's, and the mass that was kept."""
    hidden_BTD, head_VD, labels_BT, own_NV = drawn()
    sent = answers_of(hidden_BTD, head_VD, labels_BT, top=top, values=values, heat=heat)
    found = side_of(sent, labels_BT, vocab=V, values=values, place="here", heat=heat)
    kept = kept_mass(sent["others_N"], values) if "others_N" in sent else 1.0
    return found, hidden_BTD[0] @ head_VD.t(), own_NV, kept


def grouped(teacher_NV: Tensor, own_NV: Tensor, top: int, heat: float) -> Tensor:
    """T^2 KL of the K most likely tokens and of all others as one [N], written down plainly."""
    p_NV, q_NV = ((each / heat).softmax(1) for each in (teacher_NV, own_NV))
    ids_NK = p_NV.topk(top, dim=1).indices
    both = []
    for each_NV in (p_NV, q_NV):
        kept_NK = each_NV.gather(1, ids_NK)
        both.append(torch.cat([kept_NK, 1 - kept_NK.sum(1, keepdim=True)], dim=1))
    return heat**2 * (both[0] * (both[0] / both[1]).log()).sum(1)


@pytest.mark.parametrize("heat", [0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("values", ["exact", "8bit"])
def test_the_loss_is_that_of_k_tokens_and_all_others_at_the_temperature(heat: float, values: str) -> None:
    found, teacher_NV, own_NV, kept = side(heat, K, values)
    own = TokenDistribution(own_NV)
    told = found.distribution(own, torch.arange(N))
    loss_N, _ = token_gradient(Logits(temperature=heat), own, torch.zeros(N), told)
    wanted_N = grouped(teacher_NV, own_NV, K, heat)
    assert torch.allclose(loss_N, wanted_N, rtol=1e-9 if values == "exact" else 0.1)
    mass = float((teacher_NV / heat).softmax(1).topk(K, dim=1).values.sum(1).mean())
    assert kept == pytest.approx(mass, abs=1e-9 if values == "exact" else 1e-4)


@pytest.mark.parametrize("heat", [1.0, 4.0])
def test_all_tokens_are_compared_at_any_temperature(heat: float) -> None:
    found, teacher_NV, own_NV, _ = side(heat, V, "exact")
    for asked in (0.5, 1.0, 4.0):
        own = TokenDistribution(own_NV)
        told = found.distribution(own, torch.arange(N))
        loss_N, _ = token_gradient(Logits(temperature=asked), own, torch.zeros(N), told)
        wanted_N, _ = token_gradient(
            Logits(temperature=asked), own, torch.zeros(N), TokenDistribution(teacher_NV)
        )
        assert torch.allclose(loss_N, wanted_N)
