"""Decide which texts are copies of each other: those that differ only in byte order marks, line ends and
blanks. Used for corpora, labelled examples and conversations.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from unicodedata import normalize

BOM = "\ufeff"
BLOCK = 1 << 20  # characters compared at once: a list of all words would need ten times the memory
LONGEST_WORD = (
    1000  # characters; composing is quadratic in a run of accents, so longer words are not composed
)
_BLANK = re.compile(r"\s")


def without_bom(text: str) -> str:
    """The text without byte order marks at its beginning, which belong to the file; '' if only blanks are
    left.
    """
    text = text.lstrip(BOM)
    return "" if BOM in text and not text.replace(BOM, "").strip() else text


def normalised(text: str) -> str:
    """The form in which texts are compared: no byte order marks, one space per run of blanks and line ends,
    none at the ends, characters composed (Unicode NFC). Capitals, punctuation and compatibility characters
    stay: x² and x2 are two texts.
    """
    return " ".join(filter(None, map(_normalised, _blocks(text.replace(BOM, "")))))


def text_group(text: str) -> str:
    """The hash that a text shares with its copies, used as its split group if it has no other."""
    return hashlib.sha256(normalised(text).encode(errors="surrogatepass")).hexdigest()


def joined(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Merge (text, group) pairs: the name of each group, equal for groups that share a text."""
    names: dict[str, str] = {}
    first: dict[str, str] = {}

    def name(group: str) -> str:
        while (other := names.setdefault(group, group)) != group:
            names[group] = group = names[other]
        return group

    for text, group in pairs:
        one, other = name(group), name(first.setdefault(text, group))
        names[max(one, other)] = min(one, other)
    return {group: name(group) for group in names}


def _blocks(text: str) -> Iterator[str]:
    begin = 0
    while begin < len(text):
        found = _BLANK.search(text, begin + BLOCK)
        end = found.end() if found else len(text)
        yield text[begin:end]
        begin = end


def _normalised(block: str) -> str:
    words = block.split()
    if not block.isascii():
        words = [normalize("NFC", word) if len(word) <= LONGEST_WORD else word for word in words]
    return " ".join(words)
