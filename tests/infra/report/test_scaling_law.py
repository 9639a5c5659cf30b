"""The scaling law is fitted back from points that it made, with an error for unseen points."""

import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import brentq, minimize_scalar

from atelier.infra.report.scaling_law import BatchLaw, Law, Trained, batch_law, laws, lowest, optima
from atelier.infra.report.sweep_content import SweepContent
from atelier.infra.report.sweep_report import said_of_laws, write_sweep_report

LENGTHS = [2**k * 100_000 for k in range(6)]
SIZES = [50_000, 200_000, 800_000, 3_200_000]


def loss(params: float, tokens: float) -> float:
    return 1.7 + 90 * params**-0.4 + 30 * tokens**-0.3


def points(sizes: list[int], lengths: list[int], noise: float = 0.0) -> list[Trained]:
    rng = np.random.default_rng(0)
    return [Trained(n, d, loss(n, d) * (1 + noise * rng.normal())) for n in sizes for d in lengths]


@cache
def fitted(noise: float = 0.005) -> tuple[list[Trained], Law]:
    some = points(SIZES, LENGTHS, noise=noise)
    [law] = laws(some)
    return some, law


def test_a_planted_law_is_found_with_its_exponents() -> None:
    _, law = fitted(0.0)
    assert law.params is None
    assert [law.alpha, law.beta] == pytest.approx([0.4, 0.3], abs=0.02)
    assert law.floor == pytest.approx(1.7, abs=0.05)
    assert law.error < 1e-3 and law.foresight is not None and law.foresight < 2e-3


def test_noise_of_half_a_percent_leaves_a_prediction_of_four_times_the_data_within_three() -> None:
    _, law = fitted()
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
    _, joint = fitted(0.0)
    [alone] = laws(points(SIZES[:1], LENGTHS))
    assert str(joint).startswith("L = 1.") and "/ N^0.4" in str(joint) and "/ D^0.3" in str(joint)
    assert "N" not in str(alone)


PLANTED = Law(1.7, 90.0, 0.4, 30.0, 0.3, None, 0.0)
BUDGETS = (1e12, 1e13, 1e14)


def test_the_best_model_of_a_budget_is_the_lowest_point_of_the_law_along_it() -> None:
    for flops in BUDGETS:
        params, tokens = PLANTED.best(flops)
        assert 6 * params * tokens == pytest.approx(flops)
        lowest_point = minimize_scalar(
            lambda log_N, C=flops: loss(math.exp(log_N), C / 6 / math.exp(log_N)),
            bounds=(5, 25), method="bounded", options={"xatol": 1e-6},
        )  # fmt: skip
        assert params == pytest.approx(math.exp(lowest_point.x), rel=1e-3)
    assert replace(PLANTED, size=0.0).best(6e6) == (1.0, 1e6)
    assert replace(PLANTED, beta=0.0).best(6e6) == (1e6, 1.0)


def test_intervals_of_the_best_model_hold_the_planted_one_and_widen_away_from_what_was_seen() -> None:
    some, law = fitted()
    found = optima(some, law, BUDGETS)
    widths = []
    for one in found:
        params, tokens = PLANTED.best(one.flops)
        low, high = one.params_range
        assert low * 0.95 < params < high * 1.05 and low < one.params < high
        assert one.tokens_range[0] * 0.95 < tokens < one.tokens_range[1] * 1.05
        assert one.ratio_range[0] < one.tokens / one.params < one.ratio_range[1]
        assert one.loss_range[0] < one.loss < one.loss_range[1]
        widths.append(high / low)
    assert widths[0] < widths[1] < widths[2]
    assert optima(some, law, BUDGETS) == found


def tokens_to(reached: float, batch: int) -> float:
    """Of a planted critical batch 2e6 / L^4."""
    return (30 / (reached - 1.7)) ** (1 / 0.3) * (1 + batch * reached**4 / 2e6)


def batches(sizes: tuple[int, ...], noise: float = 0.0) -> list[Trained]:
    rng, found = np.random.default_rng(1), []
    for batch in sizes:
        for tokens in LENGTHS:
            reached = brentq(lambda L, D=tokens, B=batch: math.log(tokens_to(L, B) / D), 1.7001, 60.0)
            found.append(Trained(1000, tokens, float(reached) * (1 + noise * rng.normal()), batch))
    return found


def test_a_planted_critical_batch_is_found_with_its_power() -> None:
    law = batch_law(batches((1000, 4000, 16000, 64000)))
    assert law is not None and law.power == pytest.approx(4, abs=0.05) and law.error < 1e-3
    assert law(2.5) == pytest.approx(2e6 / 2.5**4, rel=0.01)
    noisy = batch_law(batches((1000, 4000, 16000, 64000), noise=0.002))
    assert noisy is not None and noisy.interval[0] < noisy(noisy.at) < noisy.interval[1]
    assert noisy(noisy.at) == pytest.approx(2e6 / noisy.at**4, rel=0.3)


def test_without_enough_batches_or_a_rise_with_them_there_is_no_batch_law() -> None:
    assert batch_law(batches((1000, 64000))) is None
    assert batch_law([replace(one, batch=0) for one in batches((1000, 4000, 16000))]) is None
    level = [replace(one, batch=b) for one in batches((1,)) for b in (1000, 4000, 16000)]
    assert batch_law(level) is None, "tokens that do not rise with the batch show no critical one"


def test_a_report_says_and_draws_the_best_models_and_the_critical_batch(tmp_path: Path) -> None:
    some, law = fitted()
    found = optima(some, law, [1e13])
    batch = BatchLaw(SIZES[0], 2e6, 4.0, 2.0, (1e5, 1.5e5), 0.01)
    content = SweepContent(
        "s", "c", "loss", "minimize", [], trained=some, laws=[law], optima=found, batch_law=batch
    )
    best, critical = said_of_laws(content)[1:]
    assert best.startswith("the best model for 1e+13 FLOPs (6 N D): 1.") and "a parameter; loss 2.4" in best
    assert critical.startswith(
        "critical batch of 0.05 M parameters: 2e+06 / L^4.00 tokens a step; at loss 2.00"
    )
    assert "1.25e+05 (1e+05 to 1.5e+05)" in critical
    sizes = {}
    for name, each in (("all", content), ("one", replace(content, optima=[], batch_law=None))):
        write_sweep_report(tmp_path / name, each)
        sizes[name] = int.from_bytes((tmp_path / name / "law.png").read_bytes()[16:20], "big")
    assert sizes["all"] > 1.8 * sizes["one"] and best in (tmp_path / "all" / "report.md").read_text()
