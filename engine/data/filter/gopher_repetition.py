"""Gopher's repetition rules (2112.11446, table A1), in the order of datatrove's GopherRepetitionFilter.

An n-gram of words is a number. The most frequent n-grams are counted exactly: an (n+1)-gram can repeat only
where its n-gram does, so only those places are looked at again. Repeated n-grams are equal if their joined
characters are, as in datatrove ("ab c" = "a bc"), by a 64-bit hash. Memory is linear in the words, time too
but for sorting.

Shape letters: W words, V distinct words, C characters of the distinct words, G n-grams, R places in the text
whose n-gram occurs elsewhere too.
"""

import re
from collections.abc import Iterator

import numpy as np

from atelier.engine.config.filter.gopher_repetition import GopherRepetition
from atelier.engine.data.counter_rng import mixed
from atelier.engine.data.filter_text import EMPTY, Check, DocumentText, by_limits, repeated
from atelier.engine.data.splitter import SplitWords

TOP, DUPLICATE = range(2, 5), range(5, 11)  # words of the n-grams of each rule
BASE = np.uint64(0x9E3779B97F4A7C15)
BLOCK = 1 << 18  # characters or places that are looked at together, which bounds the memory
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
    top = TopGrams(text.words)
    for words in TOP:
        top.lengthen()
        yield f"max_top_{words}gram", top.chars() / size
    joined = JoinedGrams(text.words)
    for words in DUPLICATE:
        joined.lengthen(words)
        yield f"max_duplicate_{words}grams", joined.duplicate_chars() / size


class TopGrams:
    """The n-grams of a text that occur at least twice; n is 1 at first."""

    def __init__(self, words: SplitWords) -> None:
        self._words, self._size = words, 1
        self._begins = words.begins_W
        self._places_R = np.arange(len(words))
        self._grams_R = words.ids_W.astype(np.int64)
        self._counts_R = words.counts_V[words.ids_W]

    def lengthen(self) -> None:
        """Go on to n-grams of one word more."""
        is_inside_R = self._places_R < len(self._words) - self._size
        places_R = self._places_R[is_inside_R]
        next_R = self._words.ids_W[places_R + self._size]
        keys_R = self._grams_R[is_inside_R] * len(self._words.index) + next_R
        grams_R, counts_R = _numbered(keys_R)
        is_repeated_R = counts_R > 1
        self._places_R, self._grams_R = places_R[is_repeated_R], grams_R[is_repeated_R]
        self._counts_R = counts_R[is_repeated_R]
        self._size += 1

    def chars(self) -> int:
        """Characters in all occurrences of the most frequent n-gram, with a blank between words. Of several
        the first counts.
        """
        if len(self._words) < self._size:
            return 0
        place, count = 0, 1
        if len(self._places_R):
            first = int(self._counts_R.argmax())
            place, count = int(self._places_R[first]), int(self._counts_R[first])
        chars = int(self._begins[place + self._size] - self._begins[place])
        return count * (chars + self._size - 1)


class JoinedGrams:
    """Hashes of the joined characters of n-grams: the polynomial of the characters' hashes, modulo 2^64."""

    def __init__(self, words: SplitWords) -> None:
        self._begins = words.begins_W
        hashes_V, factors_V = _word_hashes(words)
        self._hashes_W, self._factors_W = hashes_V[words.ids_W], factors_V[words.ids_W]
        self._grams_G, self._size = self._hashes_W, 1

    def lengthen(self, size: int) -> None:
        """Go on to n-grams of `size` words."""
        for last in range(self._size, size):
            self._grams_G = self._grams_G[:-1] * self._factors_W[last:] + self._hashes_W[last:]
        self._size = size

    def duplicate_chars(self) -> int:
        """Characters in n-grams that occurred before, read from left to right. After one, the reading goes on
        behind it.
        """
        sorted_G = np.sort(self._grams_G)
        repeated = sorted_G[1:][sorted_G[1:] == sorted_G[:-1]]
        if not len(repeated):
            return 0
        found_G = np.minimum(np.searchsorted(repeated, self._grams_G), len(repeated) - 1)
        places_R = np.flatnonzero(repeated[found_G] == self._grams_G)
        seen: set[int] = set()
        chars = free = 0
        for place, gram, length in self._in_order(places_R):
            if place < free:
                continue
            if gram in seen:
                chars += length
                free = place + self._size
            else:
                seen.add(gram)
        return chars

    def _in_order(self, places_R: np.ndarray) -> Iterator[tuple[int, int, int]]:
        """Place, hash and characters of the n-grams at these places."""
        for begin in range(0, len(places_R), BLOCK):
            places = places_R[begin : begin + BLOCK]
            lengths = self._begins[places + self._size] - self._begins[places]
            yield from zip(places.tolist(), self._grams_G[places].tolist(), lengths.tolist(), strict=True)


def _word_hashes(words: SplitWords) -> tuple[np.ndarray, np.ndarray]:
    """hashes_V: of each distinct word's characters; factors_V: BASE to the power of its length. uint64, so
    that the hash of two joined words is hash * factor of the second + hash of the second.
    """
    lengths_V, names = words.lengths_V, list(words.index)
    longest = int(lengths_V.max(initial=0))
    powers = np.full(min(longest, BLOCK) + 1, BASE, dtype=np.uint64)
    powers[0] = 1
    powers = np.multiply.accumulate(powers)
    hashes_V, factors_V = np.zeros(len(names), dtype=np.uint64), powers[np.minimum(lengths_V, BLOCK)]
    ends_V, begin = np.cumsum(lengths_V), 0
    while begin < len(names):
        before = int(ends_V[begin] - lengths_V[begin])
        end = int(np.searchsorted(ends_V, before + BLOCK, side="right"))
        if end > begin:
            hashes_V[begin:end] = _hashes("".join(names[begin:end]), lengths_V[begin:end], powers)
        else:
            end = begin + 1
            hashes_V[begin], factors_V[begin] = _long_hash(names[begin], powers)
        begin = end
    return hashes_V, factors_V


def _hashes(text: str, lengths_V: np.ndarray, powers: np.ndarray) -> np.ndarray:
    """The hashes of words by their joined characters."""
    codes_C = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32).astype(np.uint64)
    ends_V = np.cumsum(lengths_V)
    behind_C = np.repeat(ends_V, lengths_V) - np.arange(len(codes_C)) - 1  # characters of its word behind it
    return np.add.reduceat(mixed(codes_C) * powers[behind_C], ends_V - lengths_V)


def _long_hash(word: str, powers: np.ndarray) -> tuple[int, int]:
    """Hash and factor of a word of any length, block by block."""
    found, factor = 0, 1
    for begin in range(0, len(word), BLOCK):
        block = word[begin : begin + BLOCK]
        step = int(powers[len(block)])
        found = (found * step + int(_hashes(block, np.array([len(block)]), powers)[0])) % 2**64
        factor = factor * step % 2**64
    return found, factor


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
