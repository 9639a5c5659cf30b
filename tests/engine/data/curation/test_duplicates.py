import hashlib
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest

from atelier.engine.config.error import ConfigError, DataError
from atelier.engine.data.curation import duplicates, minhash
from atelier.engine.data.curation.duplicates import CACHE, Duplicates, Keep, bytes_per_document, decide
from atelier.engine.data.curation.minhash import MinHash, bands, jaccard, shingles
from tests.checkout import TOP
from tests.engine.data.curation.texts import pair, text, words

SPEC = MinHash()


def key(of: str) -> bytes:
    return hashlib.sha256(of.encode()).digest()[:16]


def decided(
    texts: Sequence[str], order: Sequence[int] | None = None, *, keep: Keep = "verified", **how: Any
) -> Duplicates:
    found = [shingles(each) for each in texts]
    return decide(
        np.array([bands(each, SPEC) for each in found], dtype=np.uint64).reshape(len(texts), SPEC.bands),
        np.array([key(each) for each in texts], dtype="S16"),
        np.arange(len(texts)) if order is None else np.array(order),
        lambda n: found[n],
        keep=keep,
        **how,
    )


def by_loops(texts: Sequence[str], order: Sequence[int]) -> tuple[dict[int, int], list[set[int]]]:
    """The rule "verified" over all pairs that share a band: kept documents, and clusters of two or more."""
    found = [shingles(each) for each in texts]
    rows = [bands(each, SPEC) for each in found]
    kept: dict[int, int] = {}
    clusters = [{n} for n in range(len(texts))]

    def join(one: int, other: int) -> None:
        both = clusters[one] | clusters[other]
        for n in both:
            clusters[n] = both

    for n in order:
        first = next(other for other in order if texts[other] == texts[n])
        if first != n:
            kept[n] = kept[first]
            join(n, first)
            continue
        best, kept[n] = 0.0, n
        for other in order[: list(order).index(n)]:
            if kept[other] == other and (rows[n] == rows[other]).any():
                similar = jaccard(found[n], found[other])
                if similar >= 0.8:
                    join(n, other)
                    if similar > best:
                        best, kept[n] = similar, other
    return kept, clusters


def family(rng: np.random.Generator, size: int, count: int = 150) -> list[str]:
    """Texts that each have two or more other words than the one before."""
    found, tokens = [], words(rng, count)
    for _ in range(size):
        found.append(" ".join(tokens))
        for place in rng.integers(0, count, int(rng.integers(1, 4))).tolist():
            tokens[place] = words(rng, 1)[0]
    return found


def mixture(seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    texts = [text(rng, 8) for _ in range(15)]
    for _ in range(6):
        texts += family(rng, 8)
    texts += [texts[n] for n in rng.integers(0, len(texts), 15).tolist()]  # exact copies
    return [texts[n] for n in rng.permutation(len(texts)).tolist()]


@pytest.mark.parametrize("seed", range(3))
def test_the_decision_is_that_of_a_loop_over_all_pairs(seed: int):
    texts = mixture(seed)
    order = np.random.default_rng(seed).permutation(len(texts)).tolist()
    decision = decided(texts, order)
    kept, clusters = by_loops(texts, order)
    assert {n: int(one) for n, one in enumerate(decision.kept_N)} == kept
    assert len(set(kept.values())) < len(texts) - 20
    names: dict[int, set[int]] = {}
    for n, name in enumerate(decision.cluster_N.tolist()):
        names.setdefault(name, set()).add(n)
    assert [names[name] for name in decision.cluster_N.tolist()] == clusters
    assert [len(names[n]) for n in range(len(names))] == decision.sizes_C.tolist()
    assert decision.exact + decision.near == len(texts) - len(set(kept.values()))


@pytest.mark.parametrize("keep", ["verified", "component"])
def test_the_decision_does_not_depend_on_the_order_of_reading(keep: Keep):
    texts = mixture(7)
    rng = np.random.default_rng(1)
    order = rng.permutation(len(texts))
    one = decided(texts, order.tolist(), keep=keep)
    moved = rng.permutation(len(texts))  # document n of `other` is document moved[n] of `one`
    back = np.argsort(moved)
    other = decided([texts[n] for n in moved], back[order].tolist(), keep=keep)
    assert np.array_equal(moved[other.kept_N], one.kept_N[moved])
    assert np.array_equal(other.jaccard_N, one.jaccard_N[moved])
    assert np.array_equal(other.cluster_N, one.cluster_N[moved])
    assert np.array_equal(other.sizes_C, one.sizes_C)
    assert (other.comparisons, other.near) == (one.comparisons, one.near)


def test_a_removed_document_names_the_kept_one_and_their_own_similarity():
    texts = mixture(3)
    decision = decided(texts)
    found = [shingles(each) for each in texts]
    removed = np.flatnonzero(decision.kept_N != np.arange(len(texts))).tolist()
    assert len(removed) > 20
    for n in removed:
        kept = int(decision.kept_N[n])
        assert decision.kept_N[kept] == kept and kept < n
        assert decision.jaccard_N[n] == jaccard(found[n], found[kept]) >= 0.8
        assert decision.chain(n) == [(kept, decision.jaccard_N[n])]
        assert decision.cluster_N[n] == decision.cluster_N[kept]


def test_a_document_that_is_similar_to_a_removed_one_only_is_kept():
    """The rule of components removes the last of a chain of small changes, although it is another text."""
    chain = family(np.random.default_rng(5), 80, 300)
    verified, component = decided(chain), decided(chain, keep="component")
    last = len(chain) - 1
    assert jaccard(shingles(chain[0]), shingles(chain[last])) < 0.3
    assert verified.kept_N[last] != 0 and len(np.unique(verified.kept_N)) > 2
    assert component.kept_N.tolist() == [0] * len(chain)
    assert component.jaccard_N[last] < 0.3 and component.sizes_C.tolist() == [len(chain)]
    copied = decided([*chain, chain[last]], keep="component")
    assert copied.chain(last + 1) == [(last, 1.0), *copied.chain(last)]
    assert copied.jaccard_N[last + 1] == copied.jaccard_N[last] == component.jaccard_N[last]
    steps = component.chain(last)
    assert len(steps) > 3 and steps[-1][0] == 0
    place = last
    for other, similar in steps:
        assert similar == jaccard(shingles(chain[place]), shingles(chain[other])) >= 0.8
        place = other


def test_the_first_in_the_order_is_kept_also_of_exact_copies():
    one, other = pair(np.random.default_rng(2), 0.9)
    decision = decided([one, other, one, "another text of its own, with some words", other], [4, 2, 3, 0, 1])
    assert decision.kept_N.tolist() == [4, 4, 4, 3, 4]
    assert decision.jaccard_N[1] == 1.0 and decision.jaccard_N[4] == 1.0
    assert decision.jaccard_N[0] == decision.jaccard_N[2] == jaccard(shingles(one), shingles(other))
    assert decision.cluster_N.tolist() == [0, 0, 0, 1, 0] and decision.sizes_C.tolist() == [4, 1]
    assert (decision.exact, decision.near, decision.comparisons) == (2, 1, 1)


def test_of_two_equally_similar_kept_documents_the_earlier_is_named():
    tokens = words(np.random.default_rng(4), 400)
    left, right = (" ".join([*tokens, *words(np.random.default_rng(n), 60)]) for n in (8, 9))
    middle = " ".join(tokens)
    found = [jaccard(shingles(middle), shingles(each)) for each in (left, right)]
    assert found[0] == found[1] >= 0.8 > jaccard(shingles(left), shingles(right))
    for order in ([0, 1, 2], [1, 0, 2]):
        decision = decided([left, right, middle], order)
        assert decision.kept_N[2] == order[0] and decision.sizes_C.tolist() == [3]


def test_texts_without_words_are_only_exact_copies():
    decision = decided(["***", "---", "***", ""])
    assert decision.kept_N.tolist() == [0, 1, 0, 3] and decision.comparisons == 0


@pytest.mark.parametrize("keep", ["verified", "component"])
def test_many_near_copies_of_a_text_cost_one_comparison_each(keep: Keep):
    rng = np.random.default_rng(1)
    tokens = words(rng, 60)
    base = shingles(" ".join(tokens))
    number = 1000
    rows = np.tile(bands(base, SPEC), (number, 1))  # the same bands, but other exact keys
    keys = rng.integers(0, 1 << 62, (number, 2)).astype(np.uint64)
    decision = decide(rows, keys, np.arange(number), lambda n: base, keep=keep)
    assert decision.kept_N.tolist() == [0] * number and decision.sizes_C.tolist() == [number]
    assert decision.comparisons == number - 1


@pytest.mark.parametrize("keep", ["verified", "component"])
def test_a_document_is_compared_with_a_limited_number_and_the_rest_is_counted(
    keep: Keep, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(minhash, "LISTED", 20)
    rng = np.random.default_rng(1)
    number = 50
    rows = rng.integers(1, 1 << 62, (number, 3)).astype(np.uint64)
    rows[:, 1] = 7  # one band is common to all, as a long licence would make it
    keys = rng.integers(0, 1 << 62, (number, 2)).astype(np.uint64)
    texts = [shingles(" ".join(words(rng, 30))) for _ in range(number)]
    decision = decide(rows, keys, np.arange(number), lambda n: texts[n], compared=8, keep=keep)
    pairs = number * (number - 1) // 2
    assert decision.near == 0
    assert decision.comparisons == sum(min(n, 8) for n in range(number))
    assert decision.not_listed == sum(max(n - 20, 0) for n in range(number))
    assert decision.comparisons + decision.not_compared + decision.not_listed == pairs


def test_documents_that_share_most_bands_are_compared_first():
    rng = np.random.default_rng(6)
    rows = rng.integers(1, 1 << 62, (4, 3)).astype(np.uint64)
    rows[3] = [rows[0, 0], rows[2, 1], rows[2, 2]]
    asked: list[int] = []

    def shingles_of(n: int) -> np.ndarray:
        asked.append(n)
        return np.arange(n * 10, n * 10 + 10, dtype=np.uint64)

    keys = rng.integers(0, 1 << 62, (4, 2)).astype(np.uint64)
    assert decide(rows, keys, np.arange(4), shingles_of, compared=1).not_compared == 1
    assert sorted(asked) == [2, 3]


@pytest.mark.parametrize("seed", range(4))
def test_lists_of_keys_in_the_memory_of_the_keys_are_those_of_a_dictionary(seed: int):
    rng = np.random.default_rng(seed)
    number = 60
    rows = rng.integers(0, 12, (number, 3)).astype(np.uint64)  # 0: no band
    is_member_N = rng.random(number) < 0.9
    groups = minhash.BandGroups(rows.copy(), is_member_N)
    lists: dict[tuple[int, int], list[int]] = {}
    for name, n in enumerate(rng.permutation(np.flatnonzero(is_member_N)).tolist()):
        counts: dict[int, int] = {}
        for band in range(3):
            for other in lists.get((band, int(rows[n, band])), []) if rows[n, band] else []:
                counts[other] = counts.get(other, 0) + 1
        found, left_out = groups.found(n)
        assert found.tolist() == sorted(counts, key=lambda other: (-counts[other], other))
        assert left_out == 0
        if rng.random() < 0.8:
            groups.add(n, name)
            for band in range(3):
                lists.setdefault((band, int(rows[n, band])), []).append(name)


def test_memory_per_document_is_as_stated():
    rng = np.random.default_rng(1)
    number = 200_000
    rows = rng.integers(1, number // 2, (number, 14)).astype(np.uint64)
    empty = np.zeros(0, dtype=np.uint64)
    tracemalloc.start()
    try:
        own = rows.copy()
        keys = rng.integers(0, 1 << 62, (number, 2)).astype(np.uint64)
        order = np.arange(number)[::-1].copy()
        groups = duplicates.BandGroups
        duplicates.BandGroups = _Lonely  # builds the lists, and leaves out the loop
        decide(own, keys, order, lambda n: empty)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        duplicates.BandGroups = groups
        tracemalloc.stop()
    assert 0.6 * bytes_per_document(14) < most / number < bytes_per_document(14)
    assert CACHE == 64 << 20


class _Lonely(minhash.BandGroups):
    def __init__(self, bands_NB: np.ndarray, is_member_N: np.ndarray) -> None:
        super().__init__(bands_NB, is_member_N)
        self.is_shared_N[:] = False


COPIES: list[tuple[Keep, int]] = [("verified", 2), ("component", 2), ("component", 600)]


def peak_of_copies(keep: Keep, size: int, number: int = 1200) -> int:
    """Most bytes in use while `number` documents in groups of `size` copies are decided."""
    duplicates.CACHE = 0
    rng = np.random.default_rng(1)
    rows = np.repeat(rng.integers(1, 1 << 62, (number // size, 14)).astype(np.uint64), size, axis=0)
    same = np.arange(100, dtype=np.uint64)
    few = rng.integers(0, 9, (3, 2)).astype(np.uint64)
    decide(rows[:3].copy(), few, np.arange(3), lambda n: same, keep=keep)  # fills the caches of a first call
    tracemalloc.start()
    own, keys = rows.copy(), rng.integers(0, 1 << 62, (number, 2)).astype(np.uint64)
    decision = decide(own, keys, np.arange(number), lambda n: same, keep=keep)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert decision.near == number - number // size
    return most


def test_memory_of_a_corpus_of_copies_is_as_stated():
    # In a process of its own: tracemalloc also counts what the threads of other tests take.
    script = f"from {__name__} import *\nfor copies in COPIES: print(peak_of_copies(*copies))"
    said = subprocess.run([sys.executable, "-c", script], cwd=TOP, capture_output=True, text=True, check=True)
    peaks = [int(line) for line in said.stdout.split()]
    assert len(peaks) == len(COPIES) and max(peaks) < 1200 * bytes_per_document(14), peaks


def test_shingles_in_memory_are_limited(monkeypatch: pytest.MonkeyPatch):
    held = duplicates._Cache(lambda n: np.full(100, n, dtype=np.uint64), 5 * 1056)
    for n in [1, 2, 3, 4, 5, 1, 6, 7]:
        assert held.of(n)[0] == n and held._bytes <= 5 * 1056
    assert list(held._held) == [4, 5, 1, 6, 7]


def test_no_documents_are_no_decision_and_one_is_kept():
    assert len(decided([]).kept_N) == 0
    assert decided(["one"]).kept_N.tolist() == [0]


def test_wrong_input_is_refused_with_a_way_out():
    rows, keys, order = np.ones((2, 14), dtype=np.uint64), np.zeros((2, 2), dtype=np.uint64), np.arange(2)

    def none(n: int) -> np.ndarray:
        return np.zeros(0, dtype=np.uint64)

    with pytest.raises(ConfigError, match="threshold: 0 is no similarity"):
        decide(rows, keys, order, none, threshold=0)
    with pytest.raises(ConfigError, match="keep: there is no all; give one of verified, component"):
        decide(rows, keys, order, none, keep=cast(Keep, "all"))
    with pytest.raises(ConfigError, match="compared: 0"):
        decide(rows, keys, order, none, compared=0)
    with pytest.raises(DataError, match="2 documents with bands, 2 with keys, 1 in the order"):
        decide(rows, keys, order[:1], none)
    with pytest.raises(DataError, match="does not name document 1"):
        decide(rows, keys, np.zeros(2, dtype=np.int64), none)
    with pytest.raises(DataError, match="give 16 bytes"):
        decide(rows, keys[:, 0], order, none)
    with pytest.raises(DataError, match="no writable array of uint64"):
        decide(rows.astype(np.int32), keys, order, none)


def test_a_large_group_without_similar_texts_takes_bounded_time():
    rng = np.random.default_rng(1)
    number = 1200
    rows = rng.integers(1, 1 << 62, (number, 14)).astype(np.uint64)
    rows[:, :7] = 5
    keys = rng.integers(0, 1 << 62, (number, 2)).astype(np.uint64)
    arrays = [np.sort(rng.integers(0, 1 << 62, 100).astype(np.uint64)) for _ in range(number)]
    begin = time.process_time()
    decision = decide(rows, keys, np.arange(number), lambda n: arrays[n], compared=4)
    assert time.process_time() - begin < 1.5
    assert decision.comparisons == sum(min(n, 4) for n in range(number))
