import re
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atelier.engine.data.curation import word_hashes
from atelier.engine.data.curation.word_hashes import find_words, ngram_hashes, spelling
from atelier.engine.data.scripts import SPACELESS

ALPHABET = "abzAZ_09 \n.,-éÉßİIıΣσς漢字かなカนไขกာភ한글ñ\u0301\x00\ud800\udfff😀²٣ﬁǅẞ"


find_words("a")  # makes the tables: before a test changes the size of blocks, and outside of times


def is_alone(letter: str) -> bool:
    return any(first <= ord(letter) <= last for first, last in SPACELESS)


def expected(text: str) -> list[tuple[int, int]]:
    """Places of the words, by a regular expression and a loop."""
    found: list[tuple[int, int]] = []
    for run in re.finditer(r"\w+", text):
        begin = run.start()
        for place in range(run.start(), run.end()):
            if is_alone(text[place]):
                if place > begin:
                    found.append((begin, place))
                found.append((place, place + 1))
                begin = place + 1
        if run.end() > begin:
            found.append((begin, run.end()))
    return found


def places(text: str) -> list[tuple[int, int]]:
    words = find_words(text)
    return list(zip(words.begin_W.tolist(), words.end_W.tolist(), strict=True))


@given(st.text(st.sampled_from(ALPHABET), max_size=80), st.sampled_from([1, 2, 3, 7, 64]))
def test_words_begin_and_end_where_a_regular_expression_finds_them(text: str, block: int):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(word_hashes, "BLOCK", block)
        assert places(text) == expected(text)
    assert places(text) == expected(text)


def test_all_characters_in_any_order_have_the_words_of_a_regular_expression():
    letters = np.random.default_rng(1).permutation(sys.maxunicode + 1).tolist()
    text = "".join(map(chr, letters[: 1 << 18]))
    assert places(text) == expected(text)


@given(st.text(st.sampled_from(ALPHABET), max_size=60), st.text(st.sampled_from(ALPHABET), max_size=60))
def test_two_words_have_one_hash_if_their_spelling_is_equal_and_only_then(one: str, other: str):
    found: dict[str, int] = {}
    for text in (one, other):
        for (begin, end), value in zip(places(text), find_words(text).hash_W.tolist(), strict=True):
            assert found.setdefault(spelling(text[begin:end]), value) == value
    assert len(set(found.values())) == len(found)


def test_the_hash_of_every_letter_is_that_of_its_lower_case():
    letters = [chr(n) for n in range(sys.maxunicode + 1) if chr(n).isalnum()]
    words = find_words(" ".join(letters))
    lower = find_words(" ".join(map(spelling, letters)))
    assert len(words.hash_W) == len(letters)
    assert np.array_equal(words.hash_W, lower.hash_W)
    assert len(np.unique(words.hash_W)) == len(set(map(spelling, letters)))


def test_a_word_over_several_blocks_has_the_hash_of_the_whole_word(monkeypatch: pytest.MonkeyPatch):
    text = "first " + "Abcdefg" * 40 + " last 漢" + "xy" * 30 + "字"
    whole = find_words(text)
    for block in (1, 5, 16, 31):
        monkeypatch.setattr(word_hashes, "BLOCK", block)
        parts = find_words(text)
        assert all(np.array_equal(one, other) for one, other in zip(whole, parts, strict=True))


def test_offsets_are_those_of_the_text_although_lower_case_may_be_longer():
    text = "İİİ İstanbul x"
    assert len(text.lower()) != len(text)
    assert places(text) == [(0, 3), (4, 12), (13, 14)]
    assert find_words("İstanbul").hash_W.tolist() == find_words("istanbul").hash_W.tolist()


def test_the_forms_of_sigma_are_one_letter():
    assert len({int(find_words(word).hash_W[0]) for word in ("ΟΔΟΣ", "οδος", "οδοσ")}) == 1


def test_numbers_of_an_ngram_depend_on_the_words_and_their_order_alone():
    hash_W = find_words("one two three four One  two, THREE").hash_W
    found = ngram_hashes(hash_W, 3)
    assert len(found) == 5 and found[0] == found[4]
    assert len(np.unique(found)) == 4
    assert ngram_hashes(find_words("two one three").hash_W, 3)[0] != found[0]
    assert len(ngram_hashes(hash_W, 8)) == 0 and len(ngram_hashes(hash_W, 7)) == 1
    assert ngram_hashes(hash_W, 1)[0] != ngram_hashes(hash_W[:2], 2)[0]


def test_hashes_are_the_same_in_every_process():
    """Fixed numbers: a change of them would make stored keys useless."""
    assert [f"{n:016x}" for n in find_words("Ab 漢 x").hash_W.tolist()] == PINNED
    code = "from atelier.engine.data.curation.word_hashes import find_words as f; print(*f('Ab 漢 x').hash_W)"
    for seed in ("1", "2"):
        told = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True, text=True, check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": "src"},
        )  # fmt: skip
        assert [f"{int(n):016x}" for n in told.stdout.split()] == PINNED


PINNED = ["7a53e6678c5089e1", "fcc6070af5b03afc", "02f590758a6d2936"]


def test_the_bits_of_hashes_are_even():
    hash_W = find_words(" ".join(map(str, range(20_000)))).hash_W
    bits = (hash_W[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 5 * 0.5 / 20_000**0.5


@pytest.mark.parametrize(
    "text",
    ["", "\x00", "\ud800", " ", "\x00" * 10**6, "\ud800\udc00" * 500_000, "w" * 3_000_000,
     "one two three four five " * 125_000, "漢" * 10**6, "İ" * 10**6],
    ids=["empty", "nul", "surrogate", "space", "nuls", "surrogates", "one word", "one ngram", "han", "dots"],
)  # fmt: skip
def test_hostile_texts_take_time_as_they_are_long(text: str):
    begin = time.process_time()
    words = find_words(text)
    assert time.process_time() - begin < 1
    assert len(words.begin_W) == len(words.end_W) == len(words.hash_W)


def test_long_texts_are_read_in_bounded_memory():
    import tracemalloc

    text = "w" * 4_000_000  # one word: the result is small
    find_words(text)
    tracemalloc.start()
    try:
        find_words(text)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
