import time

import numpy as np
import pytest

from atelier.engine.data.curation.cut import Cut, cut, cuts_of
from tests.engine.data.curation.texts import text, words


def total(found: Cut) -> int:
    return found.kept_bytes + found.overlap_bytes + found.short_bytes + found.pieces_bytes


def ends_by_hand(of: str) -> list[int]:
    """Places behind `. ` in a text in which only that ends a sentence."""
    return [n + 2 for n in range(len(of) - 1) if of[n : n + 2] == ". "]


def cut_by_hand(of: str, begin: int, end: int, margin: int) -> tuple[int, int]:
    """Character by character, as the rule is stated."""
    first = begin - margin if begin >= margin else 0
    while first > 0 and of[first - 2 : first] != ". ":
        first -= 1
    last = end + margin - 1 if end + margin <= len(of) else len(of) - 1
    while last + 1 < len(of) and of[last - 1 : last + 1] != ". ":
        last += 1
    return first, last + 1


@pytest.mark.parametrize("margin", [0, 1, 7, 200])
def test_a_cut_begins_and_ends_with_the_sentences_of_the_last_characters_of_its_margins(margin: int):
    rng = np.random.default_rng(margin)
    for _ in range(40):
        of = text(rng, 25)
        begin = int(rng.integers(0, len(of) - 2))
        end = int(rng.integers(begin + 1, min(begin + 100, len(of)) + 1))
        assert cuts_of(of, [(begin, end)], margin) == [cut_by_hand(of, begin, end, margin)]


@pytest.mark.parametrize("fewer", [0, 1])
def test_margins_are_exact_to_the_character(fewer: int):
    """With one character fewer in between, the 200th one belongs to the next sentence, which is cut, too."""
    before, found, after = "Kept one. ", "the found words", "Kept two."
    of = before + "y" * (200 - fewer) + found
    begin = of.index(found)
    assert cuts_of(of, [(begin, len(of))]) == [(0 if fewer else len(before), len(of))]
    sentence = found + "y" * (198 - fewer) + ". "
    of = sentence + after
    assert cuts_of(of, [(0, len(found))]) == [(0, len(of) if fewer else len(sentence))]


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        ("One two. XX three. Four", "XX three. "),
        ("One 3.14 XX e.g.x three! Four", "One 3.14 XX e.g.x three! "),
        ('He said "no." XX three?" Four', 'XX three?" '),
        ("Wait... XX three?! (Really.) Four", "XX three?! "),
        ("Title\n\nXX three\n \n\nFour", "XX three\n \n\n"),
        ("one line\nXX three\nFour", "one line\nXX three\nFour"),
        ("一二。XX三！」四五。", "XX三！」"),
        ("one two XX three four", "one two XX three four"),
        ("One.XX three. Four", "One.XX three. "),
    ],
)
def test_sentences_end_as_stated(of: str, expected: str):
    begin = of.index("XX")
    assert [of[b:e] for b, e in cuts_of(of, [(begin, begin + 2)], 0)] == [expected]


def test_cuts_that_overlap_or_touch_merge_and_others_do_not():
    of = "A one. B two. C three. D four. E five."
    places = [(of.index(letter + " "), of.index(letter + " ") + 1) for letter in "ABDE"]
    assert [of[b:e] for b, e in cuts_of(of, places, 0)] == ["A one. B two. ", "D four. E five."]
    assert cuts_of(of, places, 8) == [(0, len(of))]
    assert cuts_of(of, [*places[::-1], *places], 0) == cuts_of(of, places, 0)
    assert cuts_of(of, [(0, 20), (1, 2)], 0) == [(0, of.index("D"))]


def test_pieces_of_exactly_the_shortest_length_are_kept_and_shorter_ones_dropped():
    for size, pieces in ((200, [(0, 200)]), (199, [])):
        of = "x" * (size - 2) + ". " + "y" * 300
        found = cut(of, [(size + 250, size + 260)])
        assert found.pieces == pieces
        assert found.dropped == ("" if pieces else "nothing left")
        assert found.short_bytes == (0 if pieces else size) and total(found) == len(of)


@pytest.mark.parametrize(("pieces", "is_kept"), [(10, True), (11, False)])
def test_a_document_with_more_than_ten_remaining_pieces_is_dropped_whole(pieces: int, is_kept: bool):
    kept, found = "k" * 298 + ". ", "x" * 198 + ". "
    of = (kept + found) * (pieces - 1) + kept
    spans = [(begin + 50, begin + 60) for begin in range(300, len(of) - 300, 500)]
    result = cut(of, spans, margin=10)
    assert len(spans) == pieces - 1 and total(result) == len(of)
    assert len(result.pieces) == (pieces if is_kept else 0)
    assert result.dropped == ("" if is_kept else "too many pieces")
    assert (result.pieces_bytes == 300 * pieces) != is_kept


def test_a_document_without_spans_is_one_piece_however_short():
    assert cut("short", []) == ([(0, 5)], "", 5, 0, 0, 0)
    assert cut("", []) == ([(0, 0)], "", 0, 0, 0, 0)


def test_bytes_kept_and_removed_add_up_to_those_of_the_document():
    rng = np.random.default_rng(4)
    letters = ["ü", "漢", "😀", "\udc80", "é. ", "a", ". ", "\n\n", " "]
    reasons: set[str] = set()
    for _ in range(120):
        kinds = len(letters) if rng.random() < 0.7 else 4  # without ends of sentences
        of = "".join(letters[n] for n in rng.integers(0, kinds, 600))
        begins = rng.integers(0, len(of), int(rng.integers(1, 12))).tolist()
        spans = [(begin, min(begin + 20, len(of))) for begin in begins]
        found = cut(of, spans, margin=5, shortest=30, most_pieces=4)
        reasons.add(found.dropped)
        assert total(found) == len(of.encode(errors="surrogatepass"))
        assert found.kept_bytes == sum(len(of[b:e].encode(errors="surrogatepass")) for b, e in found.pieces)
        assert not found.dropped or not found.pieces
    assert reasons == {"", "nothing left", "too many pieces"}


@pytest.mark.parametrize("piece", [".", ". ", "a.)", "\n", "\n ", "。", ".)", " ", "a"])
def test_hostile_texts_are_cut_in_time_as_they_are_long(piece: str):
    of = piece * (1_000_000 // len(piece)) + "a"
    begin = time.process_time()
    cut(of, [(n, n + 3) for n in range(0, len(of) - 3, 1000)])
    assert time.process_time() - begin < 1.5


def test_words_of_a_seed_are_the_same():
    assert words(np.random.default_rng(1), 3) == words(np.random.default_rng(1), 3)
