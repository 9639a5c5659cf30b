"""Words of a text as characters, by alphabet and script: for keywords, lexicons, and units of masking."""

import importlib
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from atelier.engine.config.annotations import WordKind, dictionary
from atelier.engine.data.scripts import is_unseparated

LATIN, LETTERS = re.compile(r"[A-Za-z_]{4,}"), re.compile(r"[^\W\d]{4,}")
Span = tuple[int, int]  # characters begin .. end - 1


def words_in(kind: WordKind, scratch: Path) -> Callable[[str], list[str]]:
    """The function that lists the words of a text, with repetitions. Raises ConfigError without jieba."""
    if kind == "latin":
        return LATIN.findall
    if kind == "letters":
        return LETTERS.findall
    if kind == "characters":
        return _separated_and_pairs
    return partial(_words, cutter(scratch, "data.attributes.words"))


def _separated_and_pairs(text: str) -> list[str]:
    """Words of separated scripts, and all pairs of neighbouring characters of the others."""
    signs = [is_unseparated(sign) for sign in text]
    pairs = [text[n : n + 2] for n in range(len(text) - 1) if signs[n] and signs[n + 1]]
    return [word for word in LETTERS.findall(text) if not is_unseparated(word[0])] + pairs


def _words(cut: Callable[[str], Iterator[Span]], text: str) -> list[str]:
    """Words of two characters and more of unseparated scripts, of four and more of others."""
    words = [text[begin:end] for begin, end in cut(text)]
    return [
        word for word in words if len(word) >= (2 if is_unseparated(word[0]) else 4) and word[0].isalpha()
    ]


def cutter(scratch: Path, place: str) -> Callable[[str], Iterator[Span]]:
    """The function that divides a text into words by jieba's dictionary, which it keeps in `scratch`. Raises
    ConfigError at `place` if jieba is not installed.
    """
    dictionary("jieba", place)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # escapes in its sources, and pkg_resources
        jieba: Any = importlib.import_module("jieba")  # optional
    scratch.mkdir(parents=True, exist_ok=True)
    jieba.setLogLevel(logging.WARNING)
    found = jieba.Tokenizer()
    found.tmp_dir = str(scratch)  # otherwise the system's folder, shared by all users

    def cut(text: str) -> Iterator[Span]:
        for _, begin, end in found.tokenize(text):
            yield begin, end

    return cut
