import time

import numpy as np
import pytest
from scipy import stats

from atelier.engine.config.error import ConfigError
from atelier.engine.data.curation.minhash import NO_BAND, MinHash, bands, jaccard, share_found, shingles
from tests.engine.data.curation.texts import pair, text, words

SPEC = MinHash()


def by_sets(one: str, other: str) -> float:
    def grams(of: str) -> set[tuple[str, ...]]:
        tokens = of.lower().replace(".", "").split()
        return {tuple(tokens[n : n + 5]) for n in range(len(tokens) - 4)}

    return len(grams(one) & grams(other)) / len(grams(one) | grams(other))


def test_shingles_are_the_sorted_runs_of_five_words_each_once():
    found = shingles("One two, three four five one two three FOUR five one.")
    assert len(found) == 5 and np.all(np.diff(found.astype(object)) > 0)
    assert np.array_equal(found, shingles("one two three four five one two three four five one"))


def test_a_short_text_is_one_shingle_and_a_text_without_words_none():
    assert len(shingles("Yes.")) == len(shingles("one two three four")) == 1
    assert shingles("one two three four") != shingles("one two three")
    assert (
        len(shingles("漢字漢字")) == 1
        and len(shingles("漢字漢字漢")) == 1
        and len(shingles("漢字漢字漢字")) == 2
    )
    assert len(shingles("")) == len(shingles("*** --- !")) == 0


def test_texts_without_words_have_no_band_and_are_similar_to_nothing():
    none = shingles("?!")
    assert bands(none, SPEC).tolist() == [NO_BAND] * 14
    assert jaccard(none, none) == jaccard(none, shingles("a text")) == 0.0
    assert NO_BAND not in bands(shingles("a text"), SPEC)


def test_the_jaccard_similarity_is_that_of_the_sets_of_five_words():
    rng = np.random.default_rng(1)
    for level in np.linspace(0.05, 1, 30):
        one, other = pair(rng, float(level))
        assert jaccard(shingles(one), shingles(other)) == by_sets(one, other)
        assert jaccard(shingles(other), shingles(one)) == by_sets(one, other)


@pytest.mark.parametrize("is_han", [False, True], ids=["words", "han"])
def test_pairs_share_a_band_as_often_as_the_formula_says(is_han: bool):
    """Chi-square over levels with the measured similarities: consistent at 99.9 %. The formula for two rows
    less is rejected.
    """
    rng = np.random.default_rng(5 + is_han)
    found, expected, of_twin, spread, twin_spread = (np.zeros(5) for _ in range(5))
    for level, target in enumerate((0.5, 0.6, 0.7, 0.75, 0.8)):
        for _ in range(60):
            one, other = (shingles(each) for each in pair(rng, target, 80, is_han=is_han))
            measured = jaccard(one, other)
            found[level] += (bands(one, SPEC) == bands(other, SPEC)).any()
            for rows, mean, variance in ((8, expected, spread), (6, of_twin, twin_spread)):
                share = share_found(measured, 14, rows)
                mean[level] += share
                variance[level] += share * (1 - share)
    limit = stats.chi2.ppf(0.999, 5)
    assert np.sum((found - expected) ** 2 / spread) < limit
    assert np.sum((found - of_twin) ** 2 / twin_spread) > limit


def test_equal_texts_share_all_bands_and_unrelated_ones_none():
    rng = np.random.default_rng(3)
    keys = [bands(shingles(text(rng, 20)), SPEC) for _ in range(200)]
    every = np.concatenate(keys)
    assert len(np.unique(every)) == len(every)


def test_other_seeds_have_other_keys_and_more_bands_or_rows_cost_more_keys():
    found = shingles("a text of some words")
    assert not set(bands(found, SPEC).tolist()) & set(bands(found, MinHash(seed=2)).tolist())
    assert len(bands(found, MinHash(bands=3, rows=1))) == 3


def test_keys_are_the_same_in_every_version():
    found = bands(shingles("a text of some six words"), MinHash(2, 3))
    assert [f"{n:016x}" for n in found.tolist()] == ["1b3b056b591ac0de", "07eef21373ff5865"]


def test_the_default_finds_most_pairs_at_the_threshold_and_few_below():
    assert share_found(0.8, 14, 8) == pytest.approx(0.924, abs=0.001)
    assert share_found(0.5, 14, 8) == pytest.approx(0.053, abs=0.001)
    assert share_found(0.0, 14, 8) == 0 and share_found(1.0, 14, 8) == 1


@pytest.mark.parametrize("spec", [(0, 8), (14, 0), (1000, 8)])
def test_impossible_numbers_of_hash_functions_are_refused(spec: tuple[int, int]):
    with pytest.raises(ConfigError, match=r"minhash: .* bands of .* rows"):
        MinHash(*spec)


@pytest.mark.parametrize(
    "long", ["word " * 600_000, "w" * 3_000_000, " ".join(words(np.random.default_rng(1), 1000)) * 300]
)
def test_long_texts_take_time_as_they_are_long(long: str):
    begin = time.process_time()
    assert len(bands(shingles(long), SPEC)) == 14
    assert time.process_time() - begin < 1
