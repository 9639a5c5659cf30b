"""Find the words of a text with their places and 64-bit hashes, in numpy, without a loop over words.

A word is a run of `\\w` characters (Python's `re`: letters, digits, underscore; no combining marks), in lower
case. In scripts that are written without spaces each character is a word. Hashes depend on the text alone,
and on the Unicode version of Python (`unicodedata.unidata_version`): newer versions know more letters.

Markup does not hide words: `marked_words` finds those that a reader sees. HTML tags and entities, asterisks
and underscores of Markdown's emphasis are no words and end no run of words. Line breaks are blanks like
others.

- A tag is `<name>`, `</name>`, `<name/>`, a name with attributes (`<a href=...>`, at most 2,000 characters),
  or a comment of at most 2,000 characters. Tags inside a line of text (b, i, span ...) join the letters on
  both sides (H<sub>2</sub>O is one word). All others separate them.
- An entity (&eacute; &#233; &#xe9;) is its characters; an unknown one stays as it is written.
- Underscores at the begin or end of a word are not part of it; those inside are (snake_case).
- Asterisks between two letters join them (**b**old); all others are no part of words anyway.
- Soft hyphens and characters without width join the letters on both sides.

Shape letters: W words, C characters of a block.
"""

import html
import re
import sys
from functools import cache
from html.entities import html5
from typing import NamedTuple

import numpy as np

from atelier.engine.data.counter_rng import mixed
from atelier.engine.data.scripts import SPACELESS

BLOCK = 1 << 16  # characters read at once: bounds the working memory at about 4 MiB
_NO_WORD, _RUN, _ALONE = 0, 1, 2  # kinds of characters
_KIND = 24  # bits of the lower-case code point in an entry of the table; the kind lies above
_BASE, _MULTIPLIER = 0xD6E8FEB86659FD93, np.uint64(0xA0761D6478BD642F)  # odd
_STEP = np.uint64(0x9E3779B97F4A7C15)
_SIGMA, _FINAL_SIGMA, _DOTTED_I = 0x3C3, 0x3C2, 0x130
INLINE = frozenset([
    "a", "abbr", "acronym", "b", "bdi", "bdo", "big", "cite", "code", "del", "dfn", "em", "font", "i", "ins",
    "kbd", "mark", "q", "rb", "rp", "rt", "ruby", "s", "samp", "small", "span", "strike", "strong", "sub",
    "sup", "tt", "u", "var", "wbr",
])  # fmt: skip
_NAME = r"[A-Za-z][A-Za-z0-9:-]{0,30}"
_HIDDEN = "\u00ad\u200b-\u200d\u2060\ufeff"
_MAYBE = re.compile(f"[<&*_{_HIDDEN}]")
_MARKUP = re.compile(  # begins with a set of characters, which `re` looks for fast
    rf"[<&*_{_HIDDEN}](?:"
    rf"(?<=<)/?(?P<bare>{_NAME})\s*+/?>"
    rf"|(?<=<)(?P<full>{_NAME})\s[^<>=]{{0,200}}=[^<>]{{0,2000}}>"
    r"|(?<=<)!--(?:(?!-->|<!--).){0,2000}-->"
    r"|(?<=&)(?P<entity>#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});"
    rf"|(?P<joint>(?<=[{_HIDDEN}])|(?<=[^\W\d_]\*)\**+(?=[^\W\d_]))"
    r"|(?<=_)(?<!\w_)_*+"
    r"|(?<=_)(?<!__)_*+(?!\w)"
    r")",
    re.DOTALL,
)


class TextWords(NamedTuple):
    """The words of a text, in order."""

    begin_W: np.ndarray  # int64: characters of the text before the word
    end_W: np.ndarray  # int64: after its last character
    hash_W: np.ndarray  # uint64


def find_words(text: str) -> TextWords:
    """The words of any text, also with lone surrogates. Linear time: about 12 ns a character."""
    blocks = [_block(text[first : first + BLOCK]) for first in range(0, len(text), BLOCK)]
    if not blocks:
        none = np.zeros(0, dtype=np.int64)
        return TextWords(none, none, none.astype(np.uint64))
    counts = np.cumsum([0, *(len(block.begin_W) for block in blocks)])
    begin_W = np.concatenate([block.begin_W + n * BLOCK for n, block in enumerate(blocks)])
    end_W = np.concatenate([block.end_W + n * BLOCK for n, block in enumerate(blocks)])
    sum_W = np.concatenate([block.sum_W for block in blocks])
    later = [  # the first piece of a block, if it continues the last word of the block before
        int(counts[n]) for n in range(1, len(blocks)) if blocks[n].begins_inside and blocks[n - 1].ends_inside
    ]
    if later:
        is_first_W = np.ones(len(begin_W), dtype=bool)
        is_first_W[later] = False
        first = np.flatnonzero(is_first_W)
        for n in later:
            before = int(begin_W[n] - begin_W[first[np.searchsorted(first, n) - 1]])
            sum_W[n : n + 1] *= np.uint64(pow(_BASE, before, 1 << 64))
        sum_W = np.add.reduceat(sum_W, first)
        begin_W, end_W = begin_W[first], end_W[np.append(first[1:], len(end_W)) - 1]
    return TextWords(begin_W, end_W, mixed(sum_W + (end_W - begin_W).astype(np.uint64) * _STEP))


def ngram_hashes(hash_W: np.ndarray, n: int) -> np.ndarray:
    """uint64 hash of each run of n consecutive words (n >= 1), at the place of its first word; empty for
    fewer than n words.
    """
    count = max(len(hash_W) - n + 1, 0)
    found = np.zeros(count, dtype=np.uint64)
    for place in range(n):
        found *= _MULTIPLIER
        found += hash_W[place : place + count]
    return mixed(found + np.uint64(n * int(_STEP) % (1 << 64)))


def spelling(word: str) -> str:
    """The form in which a word is hashed: in lower case, one character for each of its own. Both small sigmas
    are one letter, and so are i and the i with a dot from the Turkish capital.
    """
    return word.lower().replace("\u0307", "").replace("\u03c2", "\u03c3")


class MarkedWords(NamedTuple):
    """The words of a text without its markup; places are those in the marked text."""

    plain: str  # the text without markup
    words: TextWords  # of `plain`
    begin_W: np.ndarray  # int64: in the marked text
    end_W: np.ndarray
    has_attributes: bool  # whether a tag with attributes was left out

    def within(self, first: int, count: int) -> str:
        """The plain text from one word to the end of the last of `count` words."""
        return self.plain[int(self.words.begin_W[first]) : int(self.words.end_W[first + count - 1])]


def unmarked_words(text: str) -> MarkedWords:
    """The words of a text as it is written: markup is text."""
    words = find_words(text)
    return MarkedWords(text, words, words.begin_W, words.end_W, has_attributes=False)


def marked_words(text: str) -> MarkedWords:
    """The words of a text without its markup. Linear time."""
    if not _MAYBE.search(text):
        return unmarked_words(text)
    plain, map_3P, has_attributes = _stripped(text)
    words = find_words(plain)
    begin_W, _ = _sources(words.begin_W, map_3P)
    _, end_W = _sources(words.end_W - 1, map_3P)
    return MarkedWords(plain, words, begin_W, end_W, has_attributes)


def without_markup(text: str) -> tuple[str, bool]:
    """The text whose words `marked_words` finds, and whether a tag with attributes was left out."""
    if not _MAYBE.search(text):
        return text, False
    plain, _, has_attributes = _stripped(text)
    return plain, has_attributes


def _stripped(text: str) -> tuple[str, np.ndarray, bool]:
    """The text without markup; of each piece its place in the plain and in the marked text, and the width of
    each character there, int64 [3, P]; whether a tag with attributes was left out.
    """
    pieces: list[str] = []
    places, sources, widths = [0], [0], [1]
    length = done = 0
    has_attributes = False
    for found in _MARKUP.finditer(text):
        begin, end = found.span()
        shown = _shown(found)
        pieces += (text[done:begin], shown)
        length += begin - done
        places += (length, length + len(shown))
        sources += (begin, end)
        widths += (end - begin, 1)
        length += len(shown)
        done = end
        has_attributes = has_attributes or found["full"] is not None
    pieces.append(text[done:])
    return "".join(pieces), np.array([places, sources, widths], dtype=np.int64), has_attributes


def _sources(places_W: np.ndarray, map_3P: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Begin and end, in the marked text, of characters of the plain one."""
    piece_W = np.searchsorted(map_3P[0], places_W, side="right") - 1
    place_W, source_W, width_W = map_3P[:, piece_W]
    begin_W = np.where(width_W == 1, source_W + places_W - place_W, source_W)
    return begin_W, begin_W + width_W


def _shown(found: re.Match[str]) -> str:
    """The text that stands for markup."""
    if name := found["entity"]:
        known = name.startswith("#") or f"{name};" in html5
        return html.unescape(found[0]) if known else found[0]
    name = found["bare"] or found["full"] or ""
    return "" if found["joint"] is not None or name.lower() in INLINE else " "


class _WordBlock(NamedTuple):
    begin_W: np.ndarray
    end_W: np.ndarray
    sum_W: np.ndarray  # uint64: the polynomial of each word's code points
    begins_inside: bool  # its first and last character may belong to a longer word
    ends_inside: bool


def _block(text: str) -> _WordBlock:
    table, power_C, inverse_C = _tables()
    if text.isascii():
        points_C = np.frombuffer(text.encode("ascii"), dtype=np.uint8)
    else:
        points_C = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    entry_C = table[points_C]
    kind_C = (entry_C >> _KIND).astype(np.uint8)
    is_run_C, is_alone_C = kind_C == _RUN, kind_C == _ALONE
    is_begin_C, is_end_C = is_run_C.copy(), is_run_C.copy()
    is_begin_C[1:] &= ~is_run_C[:-1]
    is_end_C[:-1] &= ~is_run_C[1:]
    if is_alone_C.any():
        is_begin_C |= is_alone_C
        is_end_C |= is_alone_C
    begin_W, end_W = np.flatnonzero(is_begin_C), np.flatnonzero(is_end_C) + 1
    sums_C = np.zeros(len(entry_C) + 1, dtype=np.uint64)
    points = (entry_C & ((1 << _KIND) - 1)).astype(np.uint64)
    points *= power_C[: len(points)]
    np.cumsum(points, out=sums_C[1:])
    sum_W = (sums_C[end_W] - sums_C[begin_W]) * inverse_C[begin_W]
    return _WordBlock(begin_W, end_W, sum_W, bool(is_run_C[0]), bool(is_run_C[-1]))


@cache
def _tables() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """By code point: lower case and kind (uint32); powers of the base and of its inverse (uint64 [BLOCK])."""
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    kind = np.zeros(len(every), dtype=np.uint32)
    for found in re.finditer(r"\w+", every):
        kind[found.start() : found.end()] = _RUN
    for first, last in SPACELESS:
        kind[first : last + 1] *= _ALONE
    lower = every.replace(chr(_DOTTED_I), "i").lower()  # no other character changes its length
    points = np.frombuffer(lower.encode("utf-32-le", "surrogatepass"), dtype=np.uint32).copy()
    points[[ord("\u03a3"), _FINAL_SIGMA]] = _SIGMA
    powers = [_powers(base) for base in (_BASE, pow(_BASE, -1, 1 << 64))]
    return points | (kind << np.uint32(_KIND)), powers[0], powers[1]


def _powers(base: int) -> np.ndarray:
    factors = np.full(BLOCK, base, dtype=np.uint64)
    factors[0] = 1
    return np.multiply.accumulate(factors)
