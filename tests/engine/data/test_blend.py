import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atelier.engine.config.error import ConfigError
from atelier.engine.data.blend import BLOCK, Blend, shares
from atelier.engine.data.counter_rng import Permutation


class Numbers:
    """A data set whose sample i is the number `offset + i`, repeated `length` times."""

    def __init__(self, size, length=4, offset=0):
        self.size, self.length, self.offset = size, length, offset

    def __len__(self):
        return self.size

    def batch(self, indices, epochs=None):
        rows = np.repeat(np.asarray(indices, dtype=np.int64)[:, None] + self.offset, self.length, axis=1)
        names = ("tokens_BT", "positions_BT", "documents_BT", "labels_BT")
        return {name: rows.copy() for name in names}


@given(st.integers(1, 3000), st.integers(0, 2**62))
def test_a_permutation_holds_every_number_once(size, seed):
    assert sorted(Permutation(size, seed, "x")(np.arange(size)).tolist()) == list(range(size))


@settings(deadline=None)  # a machine may be busy
@given(st.integers(1, 2**40), st.integers(0, 2**62), st.data())
def test_a_place_has_the_same_number_whatever_is_asked_with_it(size, seed, data):
    places = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20))
    order = Permutation(size, seed, "x")
    together = order(np.array(places))
    assert ((together >= 0) & (together < size)).all()
    assert together.tolist() == [int(order(np.array([place]))[0]) for place in places]


@given(st.integers(1, 2**40), st.integers(0, 2**62), st.data())
def test_the_inverse_of_a_permutation_leads_back(size, seed, data):
    places = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20)))
    order = Permutation(size, seed, "x")
    assert order.inverse(order(places)).tolist() == places.tolist()


def test_draws_that_never_come_have_no_place():
    blend = Blend([(Numbers(7), 1.0), (Numbers(5), 1.0)], seed=1, later=[(100, [1.0, 0.0])])
    last = blend.draws_before(1, 100)
    assert blend.places(1, np.arange(last, last + 9)).tolist() == [-1] * 9
    assert blend.places(0, np.array([blend.draws_before(0, 100)])).tolist() == [100]


def test_permutations_of_different_keys_look_unrelated():
    size = 5000
    orders = [Permutation(size, seed, name)(np.arange(size)) for seed, name in ((1, "a"), (2, "a"), (1, "b"))]
    orders.append(np.arange(size))
    for n, one in enumerate(orders):
        for other in orders[:n]:
            assert (one == other).sum() < 10
            assert abs(np.corrcoef(one, other)[0, 1]) < 0.06


def test_neighbours_are_torn_apart():
    size = 4096
    steps = np.abs(np.diff(Permutation(size, 7, "x")(np.arange(size))))
    assert abs(steps.mean() / (size / 3) - 1) < 0.05


blends = st.builds(
    lambda sizes, weights, seed, how: Blend(
        [(Numbers(s), w) for s, w in zip(sizes, weights, strict=False)], seed, assignment=how
    ),
    st.lists(st.integers(1, 50), min_size=3, max_size=3),
    st.lists(st.floats(0.01, 10), min_size=1, max_size=3),
    st.integers(0, 2**31),
    st.sampled_from(["blocks", "exact"]),
)


@settings(max_examples=40, deadline=None)
@given(blends, st.integers(0, 100_000), st.lists(st.integers(1, 60), min_size=1, max_size=8))
def test_any_way_of_cutting_the_stream_gives_the_same_stream(blend, first, counts):
    whole = blend.samples(first, sum(counts))
    parts, at = [], first
    for count in counts:
        parts += blend.samples(at, count)
        at += count
    assert parts == whole


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 300), st.integers(0, 2**31), st.integers(0, 100))
def test_every_sample_comes_once_an_epoch(size, seed, epoch):
    blend = Blend([(Numbers(size), 1.0)], seed)
    assert sorted(sample for _, sample in blend.samples(epoch * size, size)) == list(range(size))


def test_epochs_differ_in_their_order():
    blend = Blend([(Numbers(500), 1.0)], 4)
    one, two = blend.samples(0, 500), blend.samples(500, 500)
    assert sum(a == b for a, b in zip(one, two, strict=True)) < 10


def test_each_set_of_a_blend_gives_every_sample_once_an_epoch_also_across_blocks():
    sizes = (1000, 700, 33)
    blend = Blend([(Numbers(size), weight) for size, weight in zip(sizes, (3.0, 1.0, 0.2), strict=True)], 5)
    drawn = blend.samples(0, BLOCK * 2 + 100)
    for n, size in enumerate(sizes):
        mine = [sample for owner, sample in drawn if owner == n]
        assert len(mine) > size
        for epoch in range(len(mine) // size):
            assert sorted(mine[epoch * size : (epoch + 1) * size]) == list(range(size))


def test_an_exact_blend_keeps_every_prefix_and_every_epoch_across_periods_and_phases() -> None:
    sizes, weights = (100, 70, 33), np.array([0.502, 0.3, 0.198])
    later = [(3000, [0.2, 0.2, 0.6])]
    streams = [(Numbers(size), weight) for size, weight in zip(sizes, weights.tolist(), strict=True)]
    blend = Blend(streams, 5, later=later, assignment="exact")
    drawn = np.array(blend.samples(0, 8000))
    counts = np.cumsum(drawn[:, :1] == np.arange(3), axis=0)[:3000]
    assert np.abs(counts - np.arange(1, 3001)[:, None] * weights).max() <= 0.75
    for n, size in enumerate(sizes):
        mine = drawn[drawn[:, 0] == n, 1]
        whole = mine[: len(mine) // size * size].reshape(-1, size)
        assert len(whole) > 20 and (np.sort(whole, axis=1) == np.arange(size)).all()
        assert blend.drawn(0, 8000)[n] == (size, 0, len(mine))


def test_a_capped_set_gives_each_sample_as_often_as_its_cap_says() -> None:
    streams = [(Numbers(50), 0.5), (Numbers(20), 0.5)]
    blend = Blend(streams, 5, assignment="exact", caps=[0.0, 1.5], last=1000)
    drawn = np.array(blend.samples(0, 1000))
    mine = drawn[drawn[:, 0] == 1, 1]
    assert len(mine) == 30 and sorted(mine[:20].tolist()) == list(range(20))
    assert (drawn[-900:, 0] == 0).all()


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=20))
def test_shares_fill_a_block_within_one_sample_of_the_weights_and_none_is_left_out(weights):
    counts = np.array(shares(weights))
    exact = np.array(weights) / sum(weights) * BLOCK
    assert counts.sum() == BLOCK and counts.min() >= 1
    small = exact < 1
    assert (np.abs(counts - exact)[~small] <= 1 + small.sum()).all()


def test_every_block_holds_exactly_the_shares():
    blend = Blend([(Numbers(1000), 0.5), (Numbers(10), 0.3), (Numbers(7), 0.2)], 3)
    for block in (0, 1, 77):
        owners = [owner for owner, _ in blend.samples(block * BLOCK, BLOCK)]
        assert np.bincount(owners).tolist() == shares([0.5, 0.3, 0.2]) == [2048, 1229, 819]


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.data())
def test_shares_that_change_leave_what_came_before_and_go_on_in_every_epoch(seed, data):
    """Sets that nothing has read yet come last and change nothing, however often shares change."""
    sizes = data.draw(st.lists(st.integers(1, 5000), min_size=3, max_size=3))
    number = data.draw(st.integers(1, 3))
    firsts = sorted(data.draw(st.sets(st.integers(1, 3 * BLOCK), min_size=number, max_size=number)))
    drawn = [
        data.draw(st.lists(st.sampled_from([0.0, 0.3, 1.0, 7.0]), min_size=3, max_size=3)) for _ in firsts
    ]
    drawn = [[*weights[:2], weights[2] or 0.5] for weights in drawn]
    streams = [(Numbers(size), weight) for size, weight in zip(sizes, (3.0, 1.0, 0.0), strict=True)]
    later = list(zip(firsts, drawn, strict=True))
    whole = Blend(streams, seed, later=later)
    assert whole.samples(0, firsts[0]) == Blend(streams[:2], seed).samples(0, firsts[0])
    assert whole.samples(firsts[-1] - 1, 1) == Blend(
        streams, seed, later=later[:-1] or [(10**6, (0, 0, 1))]
    ).samples(firsts[-1] - 1, 1)
    for n, (first, weights) in enumerate(later):
        last = firsts[n + 1] if n + 1 < number else first + BLOCK
        owners = [owner for owner, _ in whole.samples(first, last - first)]
        if len(owners) >= BLOCK:
            assert np.bincount(owners[:BLOCK], minlength=3).tolist() == shares(weights)
        assert set(owners) <= {n for n, weight in enumerate(weights) if weight}
    every = whole.samples(0, firsts[-1] + BLOCK)
    for n, size in enumerate(sizes):
        mine = [sample for owner, sample in every if owner == n]
        for epoch in range(len(mine) // size):
            assert sorted(mine[epoch * size : (epoch + 1) * size]) == list(range(size))


def test_another_seed_is_another_order():
    streams = [(Numbers(1000), 1.0), (Numbers(1000), 1.0)]
    one, other = Blend(streams, 1).samples(0, 1000), Blend(streams, 2).samples(0, 1000)
    assert sum(a == b for a, b in zip(one, other, strict=True)) < 20


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 20_000), st.integers(1, 4))
def test_data_parallel_ranks_together_get_the_batch_of_one(first, ranks):
    blend = Blend([(Numbers(30), 2.0), (Numbers(9, length=3, offset=1000), 1.0)], 11)
    whole = blend.batch(first, 4 * ranks)
    parts = [blend.batch(first + 4 * rank, 4) for rank in range(ranks)]
    for name, values in whole.items():
        assert (np.concatenate([part[name] for part in parts]) == values).all()


def test_rows_of_shorter_sets_are_padded_and_not_scored():
    blend = Blend([(Numbers(30), 1.0), (Numbers(9, length=2, offset=1000), 1.0)], 11)
    batch = blend.batch(0, 64)
    for row, (owner, sample) in enumerate(blend.samples(0, 64)):
        value = sample + 1000 * owner
        tail = [value, value] if owner == 0 else None
        assert batch["tokens_BT"][row].tolist() == [value, value, *(tail or [0, 0])]
        assert batch["labels_BT"][row].tolist() == [value, value, *(tail or [-100, -100])]
        assert batch["documents_BT"][row].tolist() == [value, value, *(tail or [-1, -1])]


class Masked(Numbers):
    """Numbers that say in which epoch they were drawn, with keys of their own."""

    extras = ("bidirectional_B", "classes_B", "memory_BT")

    def batch(self, indices, epochs=None):
        ones = np.ones(len(indices), dtype=np.int64)
        rest = super().batch(indices)
        return rest | {
            "bidirectional_B": ones,
            "classes_B": np.asarray(epochs),
            "memory_BT": np.ones_like(rest["tokens_BT"]),
        }


def test_a_blend_of_ordinary_sets_has_four_keys_and_the_numbers_it_has_always_had():
    batch = Blend([(Numbers(30), 1.0), (Numbers(9, length=2, offset=1000), 1.0)], 11).batch(5, 8)
    assert list(batch) == ["tokens_BT", "positions_BT", "documents_BT", "labels_BT"]
    assert batch["tokens_BT"].tolist() == ORDINARY


ORDINARY = [[n] * 4 if n < 1000 else [n, n, 0, 0] for n in (1008, 13, 0, 9, 1003, 16, 1001, 1002)]


def test_keys_that_a_set_lacks_are_neutral_in_its_rows_in_every_batch():
    blend = Blend([(Numbers(30), 1.0), (Masked(9, length=2, offset=1000), 1.0)], 11)
    for first in range(40):  # also batches in which no row comes from the second set
        batch = blend.batch(first, 2)
        for row, (owner, _) in enumerate(blend.samples(first, 2)):
            assert batch["bidirectional_B"][row] == owner
            assert (batch["classes_B"][row] == -100) == (owner == 0)
            assert batch["memory_BT"][row].tolist() == [owner, owner, 0, 0]
        assert "parts_B" not in batch


def test_every_sample_is_made_in_the_epoch_it_is_drawn_in():
    blend = Blend([(Masked(9), 1.0)], 11)
    assert blend.batch(0, 45)["classes_B"].tolist() == [n // 9 for n in range(45)]


def test_parts_tell_which_set_a_row_came_from_once_a_set_asks():
    sets = [Numbers(30), Numbers(9), Numbers(9)]
    sets[1].part, sets[2].part = 7, 3
    blend = Blend([(one, 1.0) for one in sets], 11)
    owners = [owner for owner, _ in blend.samples(0, 64)]
    assert blend.batch(0, 64)["parts_B"].tolist() == [(-1, 7, 3)[owner] for owner in owners]


def test_streams_without_samples_or_weight_are_refused():
    for streams in ([], [(Numbers(0), 1.0)], [(Numbers(3), 0.0)]):
        with pytest.raises(ConfigError, match="each with a sample and a weight above 0"):
            Blend(streams, 1)
