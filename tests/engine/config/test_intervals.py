"""Intervals hold the true value as often as they say."""

import random

import pytest

from atelier.engine.config.intervals import apart, mean, paired, ratio, share, t95


def test_quantiles_are_those_of_the_tables():
    table = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 10: 2.228, 30: 2.042, 120: 1.980}
    assert {freedom: round(t95(freedom), 3) for freedom in table} == table


def misses(trials: int, seed: int, *, questions: int, per_group: int, is_grouped: bool = True) -> float:
    """Share of trials in which the paired interval does not hold the true difference, 0: two models that are
    right on different questions, each passage easy or hard for each. Not `is_grouped`: passages are ignored.
    """
    rng, found = random.Random(seed), 0
    for _ in range(trials):
        ones, others, groups = [], [], []
        for group in range(questions // per_group):
            easy, own, other = (rng.gauss(0, 0.15) for _ in range(3))
            for _ in range(per_group):
                ones.append(float(rng.random() < 0.5 + easy + own))
                others.append(float(rng.random() < 0.5 + easy + other))
                groups.append(str(group if is_grouped else len(groups)))
        _, low, high = paired(ones, others, groups)
        assert low is not None and high is not None
        found += not low <= 0 <= high
    return found / trials


def test_paired_intervals_miss_in_one_of_twenty():
    assert misses(1500, 1, questions=120, per_group=1) == pytest.approx(0.05, abs=0.018)
    assert misses(1500, 2, questions=160, per_group=4) == pytest.approx(0.05, abs=0.018)
    assert misses(500, 3, questions=160, per_group=4, is_grouped=False) > 0.07


def test_questions_on_one_passage_are_not_independent():
    rng = random.Random(3)
    values = [float(rng.random() < 0.5) for _ in range(40) for _ in range(1)]
    each = [value for value in values for _ in range(5)]  # five questions that are all right or all wrong
    groups = [str(n // 5) for n in range(200)]
    together, alone = mean(each, groups), mean(each, [str(n) for n in range(200)])
    single = mean(values, [str(n) for n in range(40)])
    assert together.high == pytest.approx(single.high) and alone.high < together.high


def test_shares_stay_within_bounds_and_are_never_sure():
    groups = [str(n) for n in range(20)]
    assert share([1.0] * 20, groups) == pytest.approx((1.0, 0.82, 1.0), abs=0.01)
    assert share([0.0] * 20, groups)[1:] == pytest.approx((0.0, 0.18), abs=0.01)
    for seed in range(100):
        rng = random.Random(seed)
        number = rng.randint(2, 30)
        rights = [float(rng.random() < rng.random()) for _ in range(number)]
        value, low, high = share(rights, [str(rng.randint(0, 9)) for _ in range(number)])
        assert low is None or high is None or 0 <= low <= value <= high <= 1


def test_one_group_has_no_interval():
    assert mean([1.0, 0.0], ["a", "a"]) == (0.5, None, None)
    assert share([1.0], ["a"]) == (1.0, None, None)


def test_a_ratio_is_that_of_sums():
    found = ratio([2.0, 6.0], [1.0, 3.0], ["a", "b"])
    assert found == (2.0, 2.0, 2.0)
    assert ratio([2.0, 6.0], [1.0, 2.0], ["a", "b"]).value == 8 / 3
    assert apart(found, found) == (0.0, 0.0, 0.0)
