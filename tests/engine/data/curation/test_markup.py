import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atelier.engine.data.curation.word_hashes import marked_words, unmarked_words

PIECES = [
    "word", " ", "İx", "漢", "<b>", "</b>", "<br/>", '<a href="x y">', "<!-- no -->", "&eacute;", "&amp;",
    "&x;", "_", "__", "*", "**", "\n", "1", "<", ">", "&#233;", "\u00ad", "<p\n>", "=", "😀",
]  # fmt: skip


def words(text: str) -> list[str]:
    marked = marked_words(text)
    return [marked.within(n, 1) for n in range(len(marked.begin_W))]


def sources(text: str) -> list[str]:
    marked = marked_words(text)
    return [text[begin:end] for begin, end in zip(marked.begin_W, marked.end_W, strict=True)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a <b>big</b> <i class='x y'>house</i>", ["a", "big", "house"]),
        ("one<br>two<br/>three<p>four</p><li>five", ["one", "two", "three", "four", "five"]),
        ("H<sub>2</sub>O and <b>B</b>old", ["H2O", "and", "Bold"]),
        ("caf&eacute; na&#239;ve &#xe9;t&#xE9;", ["café", "naïve", "été"]),
        ("R&amp;D a&nbsp;b &lt;x&gt;", ["R", "D", "a", "b", "x"]),
        ("&nothing; &#1114112;", ["nothing"]),
        ("_one_ __two__ ___three *four* **five** snake_case __init__", [
            "one", "two", "three", "four", "five", "snake_case", "init",
        ]),
        ("b**ol**d 2*3 4 * 5", ["bold", "2", "3", "4", "5"]),
        ("one\ntwo\r\nthree", ["one", "two", "three"]),
        ("so\u00adft ze\u200bro", ["soft", "zero"]),
        ("a < b and c > d, x<y", ["a", "b", "and", "c", "d", "x", "y"]),
        ("if a <b and c> d <c x=1> e", ["if", "a", "b", "and", "c", "d", "e"]),
        ("before <!-- not\nshown --> after", ["before", "after"]),
    ],
)  # fmt: skip
def test_words_are_those_that_a_reader_sees(text: str, expected: list[str]):
    assert words(text) == expected


@given(st.lists(st.sampled_from(PIECES), max_size=25).map("".join))
def test_each_word_lies_where_it_was_written(text: str):
    marked = marked_words(text)
    shown = [marked.within(n, 1) for n in range(len(marked.begin_W))]
    assert all(b < e for b, e in zip(marked.begin_W, marked.end_W, strict=True))
    assert all(e <= b for e, b in zip(marked.end_W[:-1], marked.begin_W[1:], strict=True)) or "&" in text
    for word, source in zip(shown, sources(text), strict=True):
        assert source == word or any(mark in source for mark in "<&*\u00ad_")
        assert (source[0] == word[0] or source[0] == "&") and (source[-1] == word[-1] or source[-1] == ";")


def test_a_word_with_an_entity_or_a_tag_in_it_covers_its_markup():
    assert sources("xx caf&eacute;s <b>bo</b>ld") == ["xx", "caf&eacute;s", "bo</b>ld"]
    assert words("a &fjlig; b") == ["a", "fj", "b"] and sources("a &fjlig; b") == ["a", "&fjlig;", "b"]


def test_text_without_markup_is_read_as_it_is():
    for text in ("a plain text, 漢字", "", "one\ntwo"):
        assert marked_words(text)[0] == unmarked_words(text)[0] == text


def test_tags_with_attributes_are_told():
    assert marked_words('see <img alt="a picture">').has_attributes
    assert not marked_words("see <b>it</b>").has_attributes


@pytest.mark.parametrize(
    "piece",
    ["_", "a_", "<", "<b ", "<!--", "&", "a*", "*", "<b", "<b =", "&amp", "<a\t", "\u200b", "<!-- -"],
)
def test_hostile_markup_takes_time_as_it_is_long(piece: str):
    """Quadratic time would take minutes."""
    begin = time.process_time()
    marked_words(piece * (200_000 // len(piece)))
    marked_words("a" + piece * (200_000 // len(piece)) + "b")
    assert time.process_time() - begin < 1.5
