"""The law that made the points is found again, and says what it did not see."""

import numpy as np
import pytest

from atelier.infra.report.scaling_law import Trained, laws, lowest

LENGTHS = [2**k * 100_000 for k in range(6)]
SIZES = [50_000, 200_000, 800_000, 3_200_000]


def loss(params: float, tokens: float) -> float:
    return 1.7 + 90 * params**-0.4 + 30 * tokens**-0.3


def points(sizes: list[int], lengths: list[int], noise: float = 0.0) -> list[Trained]:
    rng = np.random.default_rng(0)
    return [Trained(n, d, loss(n, d) * (1 + noise * rng.normal())) for n in sizes for d in lengths]


def test_a_planted_law_is_found_with_its_exponents() -> None:
    [law] = laws(points(SIZES, LENGTHS))
    assert law.params is None
    assert [law.alpha, law.beta] == pytest.approx([0.4, 0.3], abs=0.02)
    assert law.floor == pytest.approx(1.7, abs=0.05)
    assert law.error < 1e-3 and law.foresight is not None and law.foresight < 2e-3


def test_noise_of_half_a_percent_leaves_a_prediction_of_four_times_the_data_within_three() -> None:
    [law] = laws(points(SIZES, LENGTHS, noise=0.005))
    assert law(SIZES[-1], 4 * LENGTHS[-1]) == pytest.approx(loss(SIZES[-1], 4 * LENGTHS[-1]), rel=0.03)


def test_few_sizes_have_a_law_of_data_each_and_few_lengths_none() -> None:
    found = laws(points(SIZES[:2], LENGTHS))
    assert [law.params for law in found] == SIZES[:2]
    assert [law.beta for law in found] == pytest.approx([0.3, 0.3], abs=0.02)
    assert laws(points(SIZES, LENGTHS[:3])) == []
    assert laws([]) == []


def test_of_trainings_of_one_size_and_length_the_best_counts_and_a_diverged_one_never() -> None:
    some = [Trained(1, 1, 3.0), Trained(1, 1, 2.0), Trained(1, 2, float("nan"))]
    assert lowest(some) == [some[1]]


def test_a_law_reads_as_a_formula() -> None:
    [joint] = laws(points(SIZES, LENGTHS))
    [alone] = laws(points(SIZES[:1], LENGTHS))
    assert str(joint).startswith("L = 1.") and "/ N^0.4" in str(joint) and "/ D^0.3" in str(joint)
    assert "N" not in str(alone)
