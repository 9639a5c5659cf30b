import itertools
import math

import numpy as np
import pytest

from atelier.engine.config.objective.reorder import Reorder, orders
from atelier.engine.data.words import Sentences
from tests.engine.data.datasets.conftest import whole


@pytest.mark.parametrize("most", [2, 3, 4])
def test_classes_and_orders_of_segments_are_one_to_one(most):
    found = orders(most)
    everything = {o for n in range(1, most + 1) for o in itertools.permutations(range(n))}
    assert len(found) == len(set(found)) == Reorder(max_segments=most).num_classes
    assert set(found) == everything
    for n in range(1, most + 1):  # n segments begin at the class sum_{i < n} i!, in their own order
        assert found[sum(math.factorial(i) for i in range(1, n))] == tuple(range(n))


def segments_of(batch, row, sep):
    tokens = batch["tokens_BT"][row][batch["documents_BT"][row] >= 0][1:]
    return np.split(tokens, np.flatnonzero(tokens == sep))


def test_undoing_the_order_of_its_class_makes_a_row_text_again(harbour):
    rows, text, sep = (
        harbour.open(Reorder(), sequence=96),
        harbour.text(),
        harbour.vocabulary.special("<|sep|>"),
    )
    flat = text.tokens_N.astype("<u2").tobytes()
    for epoch in range(2):
        batch = whole(rows, epoch)
        assert (batch["labels_BT"] == -100).all() and (batch["bidirectional_B"] == 1).all()
        assert (batch["tokens_BT"][:, 0] == harbour.vocabulary.special("<|cls|>")).all()
        for row, kind in enumerate(batch["classes_B"].tolist()):
            order = orders(3)[kind]
            shown = [part[part != sep] for part in segments_of(batch, row, sep)]
            assert len(shown) == len(order) and all(len(part) for part in shown)
            restored = np.concatenate([shown[order.index(n)] for n in range(len(order))])
            assert restored.astype("<u2").tobytes() in flat
            numbered = [batch["tokens_BT"][row][batch["segments_BT"][row] == n] for n in range(len(order))]
            assert [part.tolist() for part in numbered] == [part.tolist() for part in shown]
            for _, before, after in Reorder().comparisons[kind]:  # neighbours in the text
                both = np.concatenate([shown[before], shown[after]])
                assert both.astype("<u2").tobytes() in flat


@pytest.mark.parametrize("most", [2, 3, 4])
def test_no_two_classes_of_as_many_segments_say_the_same_of_what_follows_what(most):
    spec = Reorder(max_segments=most)
    assert len(
        {(len(order), pairs) for order, pairs in zip(orders(most), spec.comparisons, strict=True)}
    ) == (spec.num_classes)


def test_every_class_comes_equally_often_in_an_epoch(harbour):
    rows = harbour.open(Reorder(), sequence=96)
    for epoch in range(2):
        counts = np.bincount(whole(rows, epoch)["classes_B"], minlength=9)
        assert counts.max() - counts.min() <= 1 and counts.min() > 5


def test_segments_begin_where_sentences_do(harbour):
    rows, sep = harbour.open(Reorder(), sequence=96), harbour.vocabulary.special("<|sep|>")
    batch = whole(rows)
    ends, total = 0, 0
    for row, kind in enumerate(batch["classes_B"].tolist()):
        order, shown = orders(3)[kind], segments_of(batch, row, sep)
        for place, segment in enumerate(order):
            if segment + 1 < len(order):  # the last of the text may end with its document
                last = harbour.vocabulary.bytes_of(shown[place]).rstrip()
                ends, total = ends + last.endswith((b".", b"!", b"?")), total + 1
    assert total > 50 and ends / total > 0.9  # the others had too few sentences


def test_sentences_end_at_stops_before_a_space_and_at_ends_of_lines(harbour):
    def parts(text):
        tokens = np.array(harbour.vocabulary.encode(text))
        cuts = Sentences(harbour.vocabulary).ends(tokens)
        return [harbour.vocabulary.bytes_of(part).decode().strip() for part in np.split(tokens, cuts)]

    assert parts("It is 1.5 of os.path. Is it? Yes!") == ["It is 1.5 of os.path.", "Is it?", "Yes!"]
    assert parts("if x:\n    return y\n\n\nz = 1\n") == ["if x:", "return y", "z = 1"]
    assert parts("Eins!\n\n  Zwei\n") == ["Eins!", "Zwei"]
