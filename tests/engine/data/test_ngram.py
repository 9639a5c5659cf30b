import gzip
import lzma
import math

import numpy as np
import pytest

from atelier.engine.data.ngram import _Counts, _fit, _mixed, gzip_bits, shuffled, trigram_bits, xz_bits

V = 12


def _stream(seed, documents, length=60):
    """Documents of a second-order chain over 1..V-1, each ended by 0."""
    random = np.random.default_rng(seed)
    parts = []
    for _ in range(documents):
        tokens = [1, 2]
        while len(tokens) < length:
            tokens.append(
                1 + (tokens[-1] * 5 + tokens[-2] * 3 + random.choice([0, 1], p=[0.8, 0.2])) % (V - 1)
            )
        parts += [*tokens, 0]
    return np.array(parts, dtype=np.uint16)


def test_the_estimates_after_any_context_add_up_to_one():
    counts = _Counts(_stream(1, 30).astype(np.int64), V, 0)
    ml, seen = counts.estimates(_stream(2, 5).astype(np.int64))
    weights = _fit(ml, seen, V)
    for context in ((0, 1), (1, 2), (3, 3), (11, 0), (7, 9)):
        total = 0.0
        for token in range(V):
            ml, seen = counts.estimates(np.array([*context, token]))
            total += _mixed(ml, seen, weights, V)[-1]
        assert total == pytest.approx(1.0, abs=1e-12)


def test_a_trigram_comes_near_the_entropy_of_a_chain_of_second_order():
    held_out = _stream(9, 40)
    bits = trigram_bits(_stream(1, 800), held_out, vocab=V, end=0, num_bytes=40 * 60)
    entropy = -(0.8 * math.log2(0.8) + 0.2 * math.log2(0.2))
    per_document = (
        entropy * 58 / 60
    )  # the second token and the end token are nearly certain, the first is not scored
    assert per_document * 0.9 < bits < per_document * 1.15


def test_uniform_noise_costs_its_entropy_and_not_less():
    random = np.random.default_rng(3)
    train, held_out = random.integers(1, 64, 40_000), random.integers(1, 64, 5000)
    bits = trigram_bits(train, held_out, vocab=64, end=0, num_bytes=5000)
    assert math.log2(63) * 0.995 < bits < math.log2(63) * 1.03


def test_the_weights_come_from_training_text_alone():
    """Two held-out texts together score as both alone: what is held out moves no weight."""
    train, one, two = _stream(1, 100), _stream(2, 10), _stream(3, 7)
    both = trigram_bits(train, np.concatenate([one, two]), vocab=V, end=0, num_bytes=1)
    apart = [trigram_bits(train, part, vocab=V, end=0, num_bytes=1) for part in (one, two)]
    assert both == pytest.approx(sum(apart), rel=0.001)


def test_the_first_token_of_each_document_is_not_scored():
    train = _stream(1, 50)
    assert trigram_bits(train, np.array([3]), vocab=V, end=0, num_bytes=1) == 0
    one, two = (
        trigram_bits(train, np.array(ids), vocab=V, end=0, num_bytes=1) for ids in ([3, 0], [3, 0, 4])
    )
    assert one == two > 0


def test_tokens_never_seen_and_tiny_training_texts_still_have_a_finite_score():
    bits = trigram_bits(np.array([1, 2, 0]), np.array([1, 5, 5, 7, 0]), vocab=60_000, end=0, num_bytes=5)
    assert 0 < bits < 40


def test_compressors_report_bits_per_byte_of_the_text_alone():
    text = bytes(np.random.default_rng(0).integers(97, 105, 20_000).astype(np.uint8))
    assert gzip_bits(text) == 8 * len(gzip.compress(text, 9)) / 20_000
    assert xz_bits(text) == 8 * len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)) / 20_000
    assert 3.0 < gzip_bits(text) < 3.8 and 3.0 < xz_bits(text) < 3.8


def test_shuffled_documents_are_the_same_documents() -> None:
    tokens_N = np.array([1, 2, 0, 3, 0, 4, 5, 6, 0, 7])
    mixed_N = shuffled(tokens_N, end=0)
    assert not np.array_equal(mixed_N, tokens_N)
    *parts, last = (tuple(part) for part in np.split(mixed_N, np.flatnonzero(mixed_N == 0) + 1))
    assert sorted(parts) == [(1, 2, 0), (3, 0), (4, 5, 6, 0)] and last == (7,)  # cut, not glued to another
    assert np.array_equal(mixed_N, shuffled(tokens_N, end=0))
