"""Find the words of a text with markup: as a reader sees them, with their places in the marked text.

HTML tags and entities, asterisks and underscores of Markdown's emphasis are no words and end no run of words.
Line breaks are blanks like others.

- A tag is `<name>`, `</name>`, `<name/>`, a name with attributes (`<a href=...>`, at most 2,000 characters),
  or a comment of at most 2,000 characters. Tags inside a line of text (b, i, span ...) join the letters on
  both sides (H<sub>2</sub>O is one word). All others separate them.
- An entity (&eacute; &#233; &#xe9;) is its characters; an unknown one stays as it is written.
- Underscores at the begin or end of a word are not part of it; those inside are (snake_case).
- Asterisks between two letters join them (**b**old); all others are no part of words anyway.
- Soft hyphens and characters without width join the letters on both sides.
"""

import html
import re
from html.entities import html5
from typing import NamedTuple

import numpy as np

from atelier.engine.data.curation.word_hashes import TextWords, find_words

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
    pieces: list[str] = []
    # of each piece: its place in the plain and in the marked text, and the width of each character there
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
    plain = "".join(pieces)
    words = find_words(plain)
    map_P = np.array([places, sources, widths], dtype=np.int64)
    begin_W, _ = _sources(words.begin_W, map_P)
    _, end_W = _sources(words.end_W - 1, map_P)
    return MarkedWords(plain, words, begin_W, end_W, has_attributes)


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
