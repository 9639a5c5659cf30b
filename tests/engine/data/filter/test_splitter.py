"""Words hold every character of a text that is no blank, in order; pieces and long words change nothing."""

import random
import string

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from atelier.engine.data import splitter
from atelier.engine.data.filter import gopher_repetition
from atelier.engine.data.filter.gopher_repetition import JoinedGrams
from atelier.engine.data.splitter import OWN, PUNCTUATION, TERMINAL, SplitWords

SIGNS = st.sampled_from(
    string.ascii_letters + string.digits + string.punctuation + " \n\t\x85…’é中ไ่हि🎈\ud800"
)


@settings(max_examples=60)
@given(st.text(SIGNS, max_size=60))
def test_words_are_the_text_without_blanks(text: str) -> None:
    words = [*OWN.words(text)]
    assert "".join(words) == "".join(text.split())
    assert all(words) and not any(any(map(str.isspace, word)) for word in words)


def test_words_are_those_of_the_usual_tokenizers() -> None:
    text = "It's 3.5% of a well-known (odd) e.g. os.path, said a@b.org... http://x.y/z --no 1,000"
    words = (
        "It 's 3.5 % of a well - known ( odd ) e.g. os.path , said a@b.org ... http : //x.y / z --no 1,000"
    )
    assert [*OWN.words(text)] == words.split()


def test_each_character_of_a_script_without_spaces_is_a_word_with_its_marks() -> None:
    assert [*OWN.words("日本語のテキスト。")] == [*"日本語のテキスト。"]
    assert [*OWN.words("ที่นี่ ok")] == ["ที่", "นี่", "ok"]
    assert [*OWN.words("हिन्दी में")] == ["हिन्दी", "में"]


def test_a_text_in_pieces_has_the_words_of_the_whole(monkeypatch) -> None:
    rng = random.Random(2)
    text = "".join(rng.choice("ab,. \n-'s中") for _ in range(3000))
    whole = [*OWN.words(text)]
    monkeypatch.setattr(splitter, "PIECE", 7)
    assert [*OWN.words(text)] == whole


def test_sentences_are_counted_in_any_script() -> None:
    for line, number in [
        ("One. Two! Three?", 3), ("No end", 1), ("Well... she said.", 2), ("你好。再见。", 2), ('"A." B.', 2),
        ("3.5", 1),
    ]:  # fmt: skip
        assert OWN.sentences(line) == number, line


def test_terminal_punctuation_is_punctuation_and_as_many_as_in_datatrove() -> None:
    assert len(set(TERMINAL)) == 159 and set(TERMINAL) <= set(PUNCTUATION)
    assert all(sign in PUNCTUATION for sign in string.punctuation)


def test_a_long_word_has_the_hash_of_its_parts(monkeypatch) -> None:
    parts = ["ab", "cde", "f" * 20, "gh" * 15]
    texts = {"joined": ["".join(parts)], "apart": parts}
    for block in (1 << 18, 7):
        monkeypatch.setattr(gopher_repetition, "BLOCK", block)
        grams = {name: JoinedGrams(SplitWords(words)) for name, words in texts.items()}
        grams["apart"].lengthen(4)
        found = {name: each._grams_G.tolist() for name, each in grams.items()}
        assert (
            found["joined"] == found["apart"] and found["joined"] != JoinedGrams(SplitWords(["ab"]))._grams_G
        )
    assert np.array_equal(SplitWords(["b", "a", "b"]).ids_W, [0, 1, 0])
