"""Refuse documents of which a large share of characters are no letters."""

from collections.abc import Iterator
from unicodedata import category

import numpy as np

from atelier.engine.config.filter.symbols import Symbols
from atelier.engine.data.filter_text import EMPTY, Check, DocumentText, by_limits


def build(spec: Symbols) -> Check:
    return by_limits(spec, _measures)


def _measures(text: DocumentText) -> Iterator[tuple[str, float]]:
    yield EMPTY, not text.text
    words = text.words
    letters_V = np.fromiter(map(_letters, words.index), dtype=np.int64, count=len(words.index))
    yield "max_symbols", 1 - int((letters_V * words.counts_V).sum()) / len(text.text)


def _letters(word: str) -> int:
    """Letters of a word, and marks on them."""
    if word.isalpha():
        return len(word)
    letters = sum(map(str.isalpha, word))
    return letters if word.isascii() else letters + sum(category(sign)[0] == "M" for sign in word)
