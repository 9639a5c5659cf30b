import random

import numpy as np
import pytest

from atelier.engine.config.error import ConfigError
from atelier.engine.config.exact_shares import PERIOD, batches_of, period_of, stretches_of, whole_weights

MT_NLG = {  # table 1 of 2201.11990, in parts of 100,000
    "Books3": 14336, "RealNews": 8962, "OpenWebText2": 19336, "StackExchange": 5689, "Stories": 859,
    "PubMed": 2897, "Wikipedia": 4771, "Gutenberg": 873, "BookCorpus2": 1007, "NIH": 208,
    "CC-2020-50": 13017, "Pile-CC": 9446, "CC-2021-04": 15652, "ArXiv": 1359, "GitHub": 1588,
}  # fmt: skip
PAPER = [part / PERIOD for part in MT_NLG.values()]


def off(sets: np.ndarray, weights: list[float]) -> float:
    """The most by which a prefix's count of a source differs from its share."""
    n = np.arange(1, len(sets) + 1)
    shares = np.array(weights) / sum(weights)
    return max(np.abs(np.cumsum(sets == j) - n * share).max() for j, share in enumerate(shares.tolist()))


def owners(weights: list[float], count: int, seed: int = 1) -> np.ndarray:
    [stretch] = stretches_of([(0, weights)], [0] * len(weights), seed, 0)
    return stretch.chosen(np.arange(count))[0]


def test_every_prefix_of_a_million_samples_is_within_one_sample_of_the_paper_s_shares():
    assert sum(MT_NLG.values()) == PERIOD and whole_weights(PAPER) == tuple(MT_NLG.values())
    sets = owners(PAPER, 10**6)
    assert off(sets, PAPER) <= 1 - 1 / 28 + 1e-9
    assert np.bincount(sets).tolist() == [10 * part for part in MT_NLG.values()]


def test_an_order_at_random_is_off_by_more_than_one_sample():
    broken = np.random.default_rng(1).permutation(owners(PAPER, PERIOD))
    assert off(broken, PAPER) > 10


@pytest.mark.parametrize("seed", range(12))
def test_every_prefix_is_within_one_sample_for_random_weights_and_seeds(seed):
    draw = random.Random(seed)
    count = draw.choice([2, 3, 5, 8, 30])
    weights = [float(max(1, int(10 ** draw.uniform(0, 2.5)))) for _ in range(count)]
    sets = owners(weights, 3 * int(sum(weights)), seed)
    assert off(sets, weights) <= 1 - 1 / (2 * count - 2) + 1e-9


def test_weights_that_no_short_period_holds_are_off_by_less_than_a_part_of_the_period():
    weights = [2**0.5, 3**0.5, 1e-9, 0.0]
    found = whole_weights(weights)
    assert sum(found) == PERIOD and found[2:] == (1, 0)
    assert all(abs(n / PERIOD - w / sum(weights)) < 1.5 / PERIOD for n, w in zip(found, weights, strict=True))
    assert whole_weights([1.0, 1.0, 1.0]) == (1, 1, 1)
    assert whole_weights([0.1 + 0.2, 0.7]) == (3, 7)
    many = whole_weights([1e-9] * 4000 + [1.0, 2.0])
    assert sum(many) == PERIOD and min(many) == 1 and many[-1] > many[-2] > 30_000


def test_the_draws_of_a_source_are_numbered_in_order_across_periods_and_stretches():
    phases = [(0, [3.0, 1.0, 0.0]), (10, [1.0, 1.0, 1.0]), (25, [0.0, 0.0, 1.0])]
    stretches = stretches_of(phases, [0, 0, 0], 1, 0)
    counts = [0, 0, 0]
    for place in range(40):
        stretch = next(each for each in reversed(stretches) if each.first <= place)
        assert stretch.drawn_before(place) == tuple(counts)
        [owner], [drawn] = (values.tolist() for values in stretch.chosen(np.array([place])))
        assert drawn == counts[owner]
        counts[owner] += 1
        assert stretch.place_after(owner, counts[owner]) == place + 1


def test_another_seed_is_another_order_of_sources_that_are_due_alike():
    orders = {owners([1.0] * 5, 5, seed).tobytes() for seed in range(20)}
    assert len(orders) > 5
    assert period_of((1, 2), 3)[0].tolist() == period_of((1, 2), 3)[0].tolist()


def test_a_capped_source_stops_after_its_last_sample_and_the_others_keep_their_ratio():
    [before, after] = stretches_of([(0, [5.0, 3.0, 2.0])], [0, 60, 0], 1, 1000)
    assert before.drawn_before(after.first)[1] == 60 == before.drawn_before(after.first - 1)[1] + 1
    assert abs(after.first - 60 / 0.3) <= 1 / 0.3 and after.weights == (5, 0, 2)
    counts = np.array(after.drawn_before(1000)) - np.array(after.drawn)
    assert counts[1] == 0
    assert abs(counts[0] - (1000 - after.first) * 5 / 7) < 1


def test_caps_hold_across_phases_and_several_are_reached_in_turn():
    phases = [(0, [1.0, 1.0, 1.0]), (100, [1.0, 2.0, 7.0]), (200, [1.0, 1.0, 1.0])]
    stretches = stretches_of(phases, [0, 50, 60], 1, 500)
    counts = stretches[-1].drawn_before(500)
    assert counts == (390, 50, 60) and len(stretches) == 5
    assert all(max(each.drawn_before(each.first)[1:]) <= 60 for each in stretches)


def test_a_training_whose_every_source_is_capped_before_its_end_is_refused():
    with pytest.raises(ConfigError, match=r"data.epochs: every source .* at sample 30 of 31.*raise a cap"):
        stretches_of([(0, [1.0, 2.0])], [10, 20], 1, 31)
    assert stretches_of([(0, [1.0, 2.0])], [10, 20], 1, 30)[-1].drawn_before(30) == (10, 20)
    with pytest.raises(ConfigError, match="of any length"):
        stretches_of([(0, [1.0])], [10], 1, 0)


def test_in_batches_the_rows_of_a_text_stand_together_and_every_row_comes_once():
    """Two texts with two kinds of rows each, 3 to 1; also after a phase."""
    weights = [0.75, 0.25, 0.75, 0.25]
    first, later = batches_of([(0, weights), (80, [1.0, 1.0, 1.0, 1.0])], [0, 1, 0, 1], 8, 1)
    sets, drawn = first.chosen(np.arange(80))
    assert (sets.reshape(10, 8) % 2 == [0] * 6 + [1] * 2).all()
    assert np.bincount(sets).tolist() == [30, 10, 30, 10] == list(first.drawn_before(80))
    assert all(drawn[sets == n].tolist() == [*range(count)] for n, count in enumerate([30, 10, 30, 10]))
    assert first.places(1, np.arange(10)).tolist() == np.flatnonzero(sets == 1).tolist()
    sets, drawn = later.chosen(np.arange(80, 96))
    assert (sets.reshape(2, 8) % 2 == [0] * 4 + [1] * 4).all() and drawn[sets == 1].min() == 10
    for rows, uneven in ((2, weights), (8, [1.0, 9.0]), (16, [1.0, 1.0, 1.0])):
        with pytest.raises(ConfigError, match=f"of a batch's {rows} sequences, not whole numbers"):
            batches_of([(0, uneven)], [0, 1, 0, 1][: len(uneven)], rows, 1)
