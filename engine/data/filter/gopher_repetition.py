"""Gopher's repetition rules (2112.11446, table A1), in the order of datatrove's GopherRepetitionFilter.

An n-gram of words is a number, and only n-grams that occur twice are looked at further: an (n+1)-gram can
repeat only where its n-gram does. Time and memory are linear in the words of the text.

Shape letters: W words, V distinct words, R places in the text whose n-gram occurs elsewhere too.
"""

import re
from collections.abc import Iterator

import numpy as np

from atelier.engine.config.filter.gopher_repetition import GopherRepetition
from atelier.engine.data.filter_text import EMPTY, Check, DocumentText, by_limits, repeated
from atelier.engine.data.splitter import SplitWords

TOP, DUPLICATE = range(2, 5), range(5, 11)  # words of the n-grams of each rule
DENSE = 4  # keys below this many times their number are counted in a table, others by sorting
_PARAGRAPHS, _LINES = re.compile(r"\n{2,}"), re.compile(r"\n+")


def build(spec: GopherRepetition) -> Check:
    return by_limits(spec, _measures)


def _measures(text: DocumentText) -> Iterator[tuple[str, float]]:
    yield EMPTY, not text.text
    paragraphs = _PARAGRAPHS.split(text.text.strip())
    count, chars = repeated(paragraphs)
    size = len(text.text)
    yield "max_duplicate_paragraphs", count / len(paragraphs)
    yield "max_duplicate_paragraph_chars", chars / size
    lines = _LINES.split(text.text)
    count, chars = repeated(lines)
    yield "max_duplicate_lines", count / len(lines)
    yield "max_duplicate_line_chars", chars / size
    grams = RepeatedGrams(text.words)
    for words in TOP:
        grams.lengthen()
        yield f"max_top_{words}gram", grams.top_chars() / size
    for words in DUPLICATE:
        grams.lengthen()
        yield f"max_duplicate_{words}grams", grams.duplicate_chars() / size


class RepeatedGrams:
    """The n-grams of a text that occur at least twice; n is 1 at first."""

    def __init__(self, words: SplitWords) -> None:
        self._words, self._size = words, 1
        lengths_W = words.lengths_V[words.ids_W]
        self._ends_W = np.concatenate([[0], np.cumsum(lengths_W)])  # characters before each word, and in all
        self._places_R = np.arange(len(words))
        self._grams_R = words.ids_W.astype(np.int64)
        self._counts_R = words.counts_V[words.ids_W]

    def lengthen(self) -> None:
        """Go on to n-grams of one word more."""
        is_inside_R = self._places_R < len(self._words) - self._size
        places_R = self._places_R[is_inside_R]
        next_R = self._words.ids_W[places_R + self._size]
        keys_R = self._grams_R[is_inside_R] * max(1, len(self._words.index)) + next_R
        grams_R, counts_R = _numbered(keys_R)
        is_repeated_R = counts_R > 1
        self._places_R, self._grams_R = places_R[is_repeated_R], grams_R[is_repeated_R]
        self._counts_R = counts_R[is_repeated_R]
        self._size += 1

    def top_chars(self) -> int:
        """Characters in all occurrences of the most frequent n-gram, with a blank between words. Of several
        the first counts.
        """
        if len(self._words) < self._size:
            return 0
        place, count = 0, 1
        if len(self._places_R):
            first = int(self._counts_R.argmax())
            place, count = int(self._places_R[first]), int(self._counts_R[first])
        chars = int(self._ends_W[place + self._size] - self._ends_W[place])
        return count * (chars + self._size - 1)

    def duplicate_chars(self) -> int:
        """Characters in n-grams that occurred before, read from left to right. After one, the reading goes on
        behind it.
        """
        seen: set[int] = set()
        chars = free = 0
        lengths_R = self._ends_W[self._places_R + self._size] - self._ends_W[self._places_R]
        for place, gram, length in zip(
            self._places_R.tolist(), self._grams_R.tolist(), lengths_R.tolist(), strict=True
        ):
            if place < free:
                continue
            if gram in seen:
                chars += length
                free = place + self._size
            else:
                seen.add(gram)
        return chars


def _numbered(keys_R: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A number for each key, equal for equal keys and below their count, and how often the key occurs."""
    if not len(keys_R):
        return keys_R, keys_R
    if int(keys_R.max()) < DENSE * len(keys_R):
        numbers_R, counts = keys_R, np.bincount(keys_R)
    else:
        order_R = np.argsort(keys_R, kind="stable")
        sorted_R = keys_R[order_R]
        numbers_R = np.empty_like(keys_R)
        numbers_R[order_R] = np.cumsum(np.concatenate([[False], sorted_R[1:] != sorted_R[:-1]]))
        counts = np.bincount(numbers_R)
    return numbers_R, counts[numbers_R]
