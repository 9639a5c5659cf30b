"""Each rule refuses a text beyond its limit and keeps it at the limit, by values counted by hand."""

import math
import random
import time
from collections import Counter

import pytest

from atelier.engine.config.filter.c4 import C4
from atelier.engine.config.filter.fineweb import FineWeb
from atelier.engine.config.filter.gopher_quality import GopherQuality
from atelier.engine.config.filter.gopher_repetition import GopherRepetition
from atelier.engine.config.filter.length import Length
from atelier.engine.config.filter.symbols import Symbols
from atelier.engine.config.filters import FilterSpec
from atelier.engine.data.filter_text import DocumentText, RefusedText, check_of

KINDS: dict[str, type[FilterSpec]] = {
    "length": Length,
    "gopher_quality": GopherQuality,
    "gopher_repetition": GopherRepetition,
    "fineweb": FineWeb,
    "symbols": Symbols,
}
VALUES = [  # kind, rule, text, the value by hand
    ("length", "min_chars", "ab cd", 5),
    ("length", "max_chars", "ab cd", 5),
    ("length", "min_words", "one two, three", 4),
    ("length", "max_words", "中文 ab。", 4),  # a character of a script without spaces is a word
    ("gopher_quality", "min_words", "one two . ! three", 3),
    ("gopher_quality", "max_words", "one two . ! three", 3),
    ("gopher_quality", "min_mean_word_length", "a bcd ...", 2),
    ("gopher_quality", "max_mean_word_length", "a bcd ...", 2),
    ("gopher_quality", "max_hashes", "a # b #", 2 / 4),
    ("gopher_quality", "max_ellipses", "a ... b …", 2 / 4),
    ("gopher_quality", "max_bullet_lines", "- a\n • b\nc\n\n", 2 / 4),
    ("gopher_quality", "max_ellipsis_lines", "a...\nb… \nc.", 2 / 3),
    ("gopher_quality", "min_alphabetic_words", "a 1 2 é", 2 / 4),
    ("gopher_quality", "min_stop_words", "the of the cat", 2),
    ("gopher_repetition", "max_duplicate_paragraphs", "a\n\nb\n\n\na", 1 / 3),
    ("gopher_repetition", "max_duplicate_paragraph_chars", "ab\n\nc\n\nab", 2 / 9),
    ("gopher_repetition", "max_duplicate_lines", "a\nb\n\na", 1 / 3),
    ("gopher_repetition", "max_duplicate_line_chars", "ab\nc\nab", 2 / 7),
    ("gopher_repetition", "max_top_2gram", "a bc d a bc", 2 * 4 / 11),
    ("gopher_repetition", "max_top_3gram", "a b c d a b c", 2 * 5 / 13),
    ("gopher_repetition", "max_top_4gram", "a b c d e", 7 / 9),  # the first one, though none repeats
    ("gopher_repetition", "max_duplicate_5grams", "a b c d e f a b c d e", 5 / 21),
    ("gopher_repetition", "max_duplicate_6grams", "a b c d e f a b c d e f", 6 / 23),
    ("gopher_repetition", "max_duplicate_7grams", "a b c d e f g " * 2, 7 / 28),
    ("gopher_repetition", "max_duplicate_8grams", "a b c d e f g h " * 2, 8 / 32),
    ("gopher_repetition", "max_duplicate_9grams", "a b c d e f g h i " * 2, 9 / 36),
    ("gopher_repetition", "max_duplicate_10grams", "a b c d e f g h i jk " * 2, 11 / 42),
    ("fineweb", "min_punctuated_lines", "a.\nb\n\n \nc。", 2 / 3),
    ("fineweb", "max_short_lines", "a" * 30 + "\n" + "b" * 31, 1 / 2),
    ("fineweb", "max_duplicate_line_chars", "ab\nc\nab", 2 / 5),
    ("fineweb", "max_newlines", "a b\nc\n", 2 / 3),
    ("symbols", "max_symbols", "ab 1é हि", 1 - 5 / 8),
]  # fmt: skip


def only(kind: str, rule: str, limit: float) -> FilterSpec:
    """The filter with all limits off but one."""
    off = {name: 0 for name in KINDS[kind].model_fields if name.startswith(("min_", "max_"))}
    return KINDS[kind]().model_copy(update={**off, rule: limit})


def checked(spec: FilterSpec, text: str) -> RefusedText | None:
    return check_of(spec)(DocumentText(text))


@pytest.mark.parametrize(("kind", "rule", "text", "value"), VALUES)
def test_a_text_is_kept_at_the_limit_and_refused_beyond(
    kind: str, rule: str, text: str, value: float
) -> None:
    beyond = math.inf if rule.startswith("min_") else 0
    limit = math.nextafter(value, beyond)
    refused = checked(only(kind, rule, limit), text)
    assert refused == RefusedText(f"{kind}.{rule}", {"measured": value, "limit": limit})
    assert checked(only(kind, rule, value), text) is None
    assert checked(only(kind, rule, 0), text) is None


def test_every_limit_has_a_value_by_hand() -> None:
    limits = {
        (kind, name) for kind, spec in KINDS.items() for name in spec.model_fields
        if name.startswith(("min_", "max_"))
    }  # fmt: skip
    assert limits == {(kind, rule) for kind, rule, *_ in VALUES}


def test_repetition_is_that_of_joined_strings_on_drawn_texts() -> None:
    rng = random.Random(5)
    for _ in range(80):
        words = ["a", "b", "ab", "c", "bc", "longer"][: rng.randint(2, 6)]
        text = " ".join(rng.choice(words) for _ in range(rng.randint(0, 120)))
        for size in range(2, 11):
            rule = f"max_top_{size}gram" if size < 5 else f"max_duplicate_{size}grams"
            expected = (top_chars if size < 5 else duplicate_chars)(text.split(), size) / max(1, len(text))
            found = checked(only("gopher_repetition", rule, 1e-9), text)
            if not text:
                assert found and found.reason == "gopher_repetition.empty"
            else:
                assert (found.numbers["measured"] if found else 0) == expected


def top_chars(words: list[str], size: int) -> int:
    grams = Counter(" ".join(words[n : n + size]) for n in range(len(words) - size + 1))
    return max(((count * len(gram)) for gram, count in grams.most_common(1)), default=0)


def duplicate_chars(words: list[str], size: int) -> int:
    seen, chars, place = set[str](), 0, 0
    while place <= len(words) - size:
        gram = "".join(words[place : place + size])
        chars += len(gram) if gram in seen else 0
        place += size if gram in seen else 1
        seen.add(gram)
    return chars


SENTENCE = "This is a sentence of some words."


@pytest.mark.parametrize(
    ("spec", "bad", "good"),
    [
        (C4(), "\n".join([SENTENCE] * 4), "\n".join([SENTENCE] * 5)),
        (C4(min_sentences=1), f"{SENTENCE}\nlorem IPSUM dolor sit.", f"{SENTENCE}\nlorem IPSUM"),
        (C4(min_sentences=1), f"{SENTENCE}\nA bracket { '{' } here.", f"{SENTENCE}\nA bracket {{ here"),
        (C4(min_sentences=1), "Two words.", "Three short words."),
        (C4(min_sentences=1), f"A {'x' * 1000}. b c.", f"A {'x' * 999}. b c."),
        (C4(min_sentences=1), "Please enable JavaScript now.", "Please enable a script now."),
        (C4(min_sentences=1), "This site uses cookies now.", "This site bakes cookies now."),
        (C4(min_sentences=1), "It goes on and on...", "It goes on and on.."),
        (C4(min_sentences=1, citations=False), "It is said so.[1]", "It is said so."),
        (C4(min_sentences=1, bad_words=("damn", "a b")), f"{SENTENCE} Damn!", f"{SENTENCE} Damned!"),
        (C4(min_sentences=0, min_paragraphs=2), "x" * 200 + "\n" + "x" * 199, "x" * 200 + "\n" + "x" * 200),
        (FineWeb(), " \n\t\n", f"{SENTENCE}\n"),
    ],
)  # fmt: skip
def test_a_bad_text_is_refused_and_its_good_twin_is_kept(spec: FilterSpec, bad: str, good: str) -> None:
    assert checked(spec, bad) is not None
    assert checked(spec, good) is None


def test_a_check_decides_the_same_on_the_same_text_and_changes_nothing() -> None:
    text = DocumentText("the cat and the dog " * 30)
    found = [[check_of(kind())(text) for kind in KINDS.values()] for _ in range(2)]
    assert found[0] == found[1] and text.text == "the cat and the dog " * 30


HOSTILE = {
    "one n-gram": "one two three four five " * 6_000,
    "one word": "x" * 150_000,
    "empty lines": "\n" * 150_000,
    "blank lines": " \n" * 75_000,
    "signs": "/\\" * 75_000,
    "brackets": "a(" * 75_000,
    "short forms": "'s" * 75_000,
    "dots": "a." * 75_000,
    "citations": "[1" * 75_000,
    "han": "中文" * 75_000,
    "two letters": "".join(random.Random(1).choices("ab ", k=150_000)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_filter_takes_more_than_linear_time_on_a_hostile_text(name: str) -> None:
    specs = [*(kind() for kind in KINDS.values()), C4(), C4(terminal_punctuation=False, bad_words=("x y",))]
    specs.append(GopherRepetition(**{n: 1.0 for n in GopherRepetition.model_fields if n != "kind"}))
    begin = time.process_time()
    text = DocumentText(HOSTILE[name])
    for spec in specs:
        check_of(spec)(text)
    assert time.process_time() - begin < 2  # linear: 0.05 to 0.4 s; quadratic: minutes
