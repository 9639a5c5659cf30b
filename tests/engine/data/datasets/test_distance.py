import numpy as np
import pytest

from atelier.engine.config.objective.distance import Distance
from atelier.engine.data.datasets.distance import ADJACENT, APART, OTHER
from tests.engine.data.datasets.conftest import whole


@pytest.fixture(params=["train", "held_out"])
def split(request):
    return request.param


def test_the_class_is_true_of_the_documents_ends(harbour, split):
    rows, text = harbour.open(Distance(), sequence=96, split=split), harbour.text(split)
    for epoch in range(3):
        for pair in rows.pairs(np.arange(len(rows)), np.full(len(rows), epoch)):
            begins, lasts = np.array([pair.a_begin, pair.b_begin]), np.array([pair.a_end, pair.b_end]) - 1
            owners = text.documents(begins)
            assert (begins <= lasts).all()
            assert (owners == text.documents(lasts)).all()  # each in one document
            assert (lasts + 1 < text.ends_D[owners]).all()  # without its end token
            is_same = owners[0] == owners[1]
            assert is_same == (pair.kind != OTHER)
            assert (pair.a_end == pair.b_begin) == (pair.kind == ADJACENT)
            if pair.kind == APART:
                gap = max(pair.a_begin - pair.b_end, pair.b_begin - pair.a_end)
                assert gap > 0


def test_a_row_holds_the_two_fragments_between_separators(harbour):
    rows, text = harbour.open(Distance(), sequence=96), harbour.text()
    cls, sep = harbour.vocabulary.special("<|cls|>"), harbour.vocabulary.special("<|sep|>")
    batch = whole(rows)
    assert (batch["labels_BT"] == -100).all() and (batch["bidirectional_B"] == 1).all()
    for row, pair in enumerate(rows.pairs(np.arange(len(rows)))):
        a, b = text.tokens_N[pair.a_begin : pair.a_end], text.tokens_N[pair.b_begin : pair.b_end]
        expected = [cls, *a, sep, *b, sep]
        assert batch["tokens_BT"][row, : len(expected)].tolist() == expected
        assert (batch["documents_BT"][row] >= 0).sum() == len(expected)
        assert batch["classes_B"][row] == pair.kind


def test_the_three_classes_come_equally_often_in_an_epoch(harbour, split):
    rows = harbour.open(Distance(), sequence=96, split=split)
    for epoch in range(2):
        counts = np.bincount(whole(rows, epoch)["classes_B"], minlength=3)
        assert counts.max() - counts.min() <= 1 and counts.min() > 5


def test_fragments_apart_stand_on_both_sides_of_the_first(harbour):
    rows = harbour.open(Distance(), sequence=96)
    apart = [pair for pair in rows.pairs(np.arange(len(rows))) if pair.kind == APART]
    before = sum(pair.b_begin < pair.a_begin for pair in apart)
    assert 0.1 < before / len(apart) < 0.9
