import itertools
import math
import random
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from atelier.engine.config.objective.mlm import MLM
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.data.words import Spelling, find_phrases, find_words
from tests.engine.data.datasets.conftest import whole

NO_PHRASES = np.zeros(0, dtype=np.uint64)


@pytest.fixture(scope="module")
def rows(harbour):
    return harbour.open(MLM(), sequence=128)


def spans(vocabulary, tokens, pattern):
    """The tokens that each match of `pattern` in the bytes of `tokens` touches."""
    ends = np.cumsum([len(vocabulary.bytes_of([t])) for t in tokens])
    raw = vocabulary.bytes_of(tokens)
    for match in re.finditer(pattern, raw):
        first, last = np.searchsorted(ends, [match.start(), match.end() - 1], side="right")
        yield slice(first, last + 1)


def test_a_row_is_cls_and_the_tokens_that_follow_the_row_before(rows, harbour):
    batch = whole(rows)
    shown_BT = np.where(batch["labels_BT"] >= 0, batch["labels_BT"], batch["tokens_BT"])
    assert (shown_BT[:, 0] == harbour.vocabulary.special("<|cls|>")).all()
    text = shown_BT[:, 1:].reshape(-1)[: len(harbour.text())]
    assert (text == harbour.text().tokens_N).all()
    assert (batch["bidirectional_B"] == 1).all()


def test_documents_of_a_row_are_told_apart(rows, harbour):
    batch, text = whole(rows), harbour.text()
    for row in range(len(rows)):
        places = np.arange(row * 127, min((row + 1) * 127, len(text)))
        owners = np.searchsorted(text.ends_D, places, side="right")
        size = len(places)
        assert (batch["documents_BT"][row, 1 : size + 1] == owners - owners[0]).all()
        assert batch["documents_BT"][row, 0] == 0


def test_no_word_and_no_identifier_is_half_hidden_also_where_rows_meet(rows, harbour):
    num_hidden = num_cut = 0
    for epoch in range(6):
        batch = whole(rows, epoch)
        hidden_N = (batch["labels_BT"] >= 0)[:, 1:].reshape(-1)
        for span in spans(
            harbour.vocabulary, harbour.text().tokens_N, rb"[A-Za-z0-9_]+(?:[._]+[A-Za-z0-9]+)*"
        ):
            part = hidden_N[span]
            assert part.all() or not part.any()
            num_hidden += part.all() and span.stop - span.start > 1
            if span.start // 127 < (span.stop - 1) // 127:  # neither row knows the whole of it
                assert not part.any()
                num_cut += 1
    assert num_hidden > 100 and num_cut > 100


def test_a_units_tokens_are_masked_replaced_or_kept_together(rows, harbour):
    mask = harbour.vocabulary.special("<|mask|>")
    counts = np.zeros(3)
    for epoch in range(6):
        batch = whole(rows, epoch)
        is_hidden_BT, is_mask_BT = batch["labels_BT"] >= 0, batch["tokens_BT"] == mask
        is_kept_BT = is_hidden_BT & (batch["tokens_BT"] == batch["labels_BT"])
        counts += [is_mask_BT.sum(), is_kept_BT.sum(), (is_hidden_BT & ~is_mask_BT & ~is_kept_BT).sum()]
        assert not (is_mask_BT & ~is_hidden_BT).any()
        shown_BT = np.where(is_hidden_BT, batch["labels_BT"], batch["tokens_BT"])
        for row in range(len(rows)):
            for span in spans(harbour.vocabulary, shown_BT[row], rb"[A-Za-z]+"):
                part = is_mask_BT[row][span]
                assert part.all() or not part.any()
    assert np.abs(counts / counts.sum() - [0.8, 0.1, 0.1]).max() < 0.03


@pytest.mark.parametrize("rate", [0.15, 0.4])
def test_the_share_hidden_is_the_rate(harbour, rate):
    rows = harbour.open(MLM(rate=rate), sequence=128)
    batches = [whole(rows, epoch) for epoch in range(5)]
    hidden = sum(int((batch["labels_BT"] >= 0).sum()) for batch in batches)
    tokens = sum(int((batch["documents_BT"] >= 0).sum()) for batch in batches)
    assert abs(hidden / tokens - rate) < 0.01, hidden / tokens


def test_units_are_words_identifiers_names_and_phrases(harbour):
    spelling = Spelling(harbour.vocabulary)
    phrases = find_phrases(harbour.text(), spelling, count=20, pmi=3.0)

    def units(text, known):
        tokens = np.array([harbour.vocabulary.encode(text)])
        words = find_words(tokens, spelling, known)
        numbers = (np.cumsum(~words.is_linked_W) - 1)[words.words_BT][0]
        parts = [
            harbour.vocabulary.bytes_of(tokens[0][numbers == n]).decode(errors="replace")
            for n in range(numbers[-1] + 1)
        ]
        return [part.strip() for part in parts if part.strip()]

    assert units("a zebra os.path.join, my_var2 __init__ x = self._y.", NO_PHRASES) == [
        *("a", "zebra", "os.path.join", ",", "my_var2", "__init__", "x", "=", "self._y", ".")
    ]
    assert units("by Ada Lovelace of MacKenzie Point. Ada", NO_PHRASES) == [
        *("by", "Ada Lovelace", "of", "MacKenzie Point", ".", "Ada")
    ]
    assert units("a steam boat for", phrases) == ["a", "steam boat", "for"]
    assert units("a steam boat for", NO_PHRASES) == ["a", "steam", "boat", "for"]
    assert "naïve" in units("so naïve", NO_PHRASES)
    assert len(units("x" + "世" * 30, NO_PHRASES)) > 3  # a script without spaces is cut


def test_phrases_are_the_pairs_that_counting_words_finds(harbour):
    draw = random.Random(7)
    words = ["red", "fox", "old", "sea", "tin", "can", "map", "oar"]
    said = []
    while len(said) < 6000:
        one = draw.choice(words)
        said += [one, {"red": "fox", "tin": "can"}[one]] if one in ("red", "tin") else [one]
    text = "".join(f" {word}" for word in said)
    tokenizer = harbour.shop.tokenizer(harbour.shop.corpus([f"{text} {n}" for n in range(4)]), vocab=320)
    vocabulary = Vocabulary.read(Path(tokenizer.url) / "tokenizer.json")
    spelling = Spelling(vocabulary)

    class Said:
        tokens_N = np.array(vocabulary.encode(text))

        def __len__(self):
            return len(self.tokens_N)

    pairs, alone = Counter(itertools.pairwise(said)), Counter(said)
    for count, pmi in ((1, 0.0), (95, 0.0), (1, 1.5)):
        found = find_phrases(Said(), spelling, count=count, pmi=pmi)
        for (one, other), times in pairs.items():
            bits = math.log2(times * len(said) / (alone[one] * alone[other]))
            tokens = np.array([vocabulary.encode(f" {one} {other}")])
            linked = find_words(tokens, spelling, found).is_linked_W.tolist()
            assert linked == [False, times >= count and bits >= pmi], (one, other, times, bits)
        assert 0 < len(found) <= len(pairs)
