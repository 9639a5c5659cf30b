"""Split a text into words and sentences, in linear time and with bounded memory besides the result.

A word is a run of letters, digits, marks and symbols; a run of one punctuation character is a word of its
own, as in the tokenizers that the published thresholds of filters were chosen with. Each character of a
script without spaces (Chinese, Japanese, Thai, Lao, Burmese, Khmer) is a word, with the marks on it.

Shape letters: W words, V distinct words.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import chain, count
from typing import NamedTuple

import numpy as np

PIECE = 1 << 20  # characters that are split at a time
KEPT, SHORT_RUN = 1 << 16, 32  # runs between blanks whose words are kept, and the most characters of one


def _characters(ranges: str) -> str:
    """The characters of ranges of hexadecimal code points."""
    ends = (part.split("-") for part in ranges.split())
    return "".join(chr(code) for pair in ends for code in range(int(pair[0], 16), int(pair[-1], 16) + 1))


# the characters that end sentences in any script, as in datatrove 0.10.1 (Unicode's Sentence_Terminal)
TERMINAL = _characters(
    "21 2e 3f 589 61d-61f 6d4 700-702 7f9 837 839 83d-83e 964-965 104a-104b 1362 1367-1368 166e 1735-1736"
    " 17d4-17d6 17d9-17da 1803 1809 1944-1945 1aa8-1aab 1b5a-1b5b 1b5e-1b5f 1b7d-1b7e 1c3b-1c3c 1c7e-1c7f"
    " 203c-203d 2047-2049 2e2e 2e3c 2e53-2e54 3002 a4ff a60e-a60f a6f3 a6f7 a876-a877 a8ce-a8cf a92f"
    " a9c8-a9c9 aa5d-aa5f aaf0-aaf1 abeb fe52 fe56-fe57 ff01 ff0e ff1f ff61 10a56-10a57 10f55-10f59"
    " 10f86-10f89 11047-11048 110be-110c1 11141-11143 111c5-111c6 111cd 111de-111df 11238-11239 1123b-1123c"
    " 112a9 1144b-1144c 115c2-115c3 115c9-115d7 11641-11642 1173c-1173e 11944 11946 11a42-11a43 11a9b-11a9c"
    " 11c41-11c42 11ef7-11ef8 11f43-11f44 16a6e-16a6f 16af5 16b37-16b38 16b44 16e98 1bc9f 1da88"
)
# punctuation and control characters, as in datatrove 0.10.1: a word of nothing else is a symbol
PUNCTUATION = TERMINAL + _characters(
    "0-8 b-1f 21-2f 3a-40 5b-60 7b-9f ab b4 bb 2013-2014 2019 201c-201e 2026 2236 2501 25ba 3001-3002"
    " 3008-300d 3010-3011 ff01 ff05 ff08-ff09 ff0c ff0e ff11 ff1a-ff1b ff1f ff5e"
)
# Thai and Lao, Burmese, Khmer, kana, Han, half-width kana
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\uff66-\uff9f\U0001b000-\U0001b16f\U00020000-\U0003ffff"
)
_MARKS = (  # signs of those scripts that stand on the character before them
    "\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ece\u102b-\u103e\u1056-\u1059\u105e-\u1060"
    "\u1062-\u1064\u1067-\u106d\u1071-\u1074\u1082-\u108d\u108f\u109a-\u109d\u17b4-\u17d3\u17dd"
    "\u3099\u309a\uff9e\uff9f"
)
_SIGNS = {sign for sign in PUNCTUATION if not sign.isspace()}
_SIGN = re.escape("".join(sorted(_SIGNS)))
_APART = ",:<>=/–—-"  # signs that end a word if a letter follows; others may be inside of a word
_INSIDE = re.escape("".join(sorted(_SIGNS - {*_APART, ".", "…"})))
_LETTER = rf"[^\s{_SIGN}{_UNSPACED}]"
_SHORT = rf"['’](?:s|re|ve|ll|d|m)(?!{_LETTER})"  # short forms of English verbs are words
# Possessive repeats (++, *+) never try again, so no text takes more than linear time.
_WORD = re.compile(
    rf"(?<!{_LETTER})(?:[A-Za-z]\.){{2,}}+"  # e.g. and the like
    rf"|(?<!{_LETTER})[-/\\|~@^+]{{0,3}}+{_LETTER}++"  # up to three signs may begin a word
    rf"(?:(?!{_SHORT})(?:[{_INSIDE}]|\.(?![.A-Z])|[{_APART}](?![^\W\d_]))++{_LETTER}++)*+"
    rf"|{_SHORT}|[{_UNSPACED}][{_MARKS}]*+|\.++|-++|[{_SIGN}]"
)
_BLANK = re.compile(r"\s")
_END = re.compile(rf"(?<![{re.escape(TERMINAL)}])[{re.escape(TERMINAL)}]++[\"'”’)\]]*+(?=\s|$)")
_UNSPACED_END = re.compile(r"(?<![。！？｡])[。！？｡]++(?=\S)")


class Splitter(NamedTuple):
    """The words of a text, in order, and the number of sentences in a line that is not blank."""

    words: Callable[[str], Iterable[str]]
    sentences: Callable[[str], int]


def pieces(text: str) -> Iterator[str]:
    """The text in pieces of about PIECE characters, each cut at a blank."""
    begin = 0
    while begin < len(text):
        found = _BLANK.search(text, begin + PIECE)
        end = found.start() if found else len(text)
        yield text[begin:end]
        begin = end


def _words(text: str) -> Iterator[str]:
    runs = chain.from_iterable(piece.split() for piece in pieces(text))
    return chain.from_iterable(map(_words_of_run, runs))


def _words_of_run(run: str) -> Sequence[str]:
    return _kept(run) if len(run) <= SHORT_RUN else _WORD.findall(run)


@lru_cache(maxsize=KEPT)
def _kept(run: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(run))


def _sentences(line: str) -> int:
    """Ends of sentences in a line, and one more if text follows the last."""
    found = [match.end() for match in _END.finditer(line)]
    rest = not found or bool(line[found[-1] :].strip())
    return len(found) + sum(1 for _ in _UNSPACED_END.finditer(line)) + rest


OWN = Splitter(_words, _sentences)


class SplitWords:
    """The words of a text as numbers: `ids_W` (int32) in order, `index`: word -> number."""

    def __init__(self, words: Iterable[str]) -> None:
        index: defaultdict[str, int] = defaultdict(count().__next__)
        self.ids_W = np.fromiter(map(index.__getitem__, words), dtype=np.int32)
        self.index: dict[str, int] = index

    def __len__(self) -> int:
        return len(self.ids_W)

    @cached_property
    def counts_V(self) -> np.ndarray:
        """How often each distinct word occurs."""
        return np.bincount(self.ids_W, minlength=len(self.index))

    @cached_property
    def lengths_V(self) -> np.ndarray:
        """Characters of each distinct word."""
        return np.fromiter(map(len, self.index), dtype=np.int64, count=len(self.index))

    @cached_property
    def begins_W(self) -> np.ndarray:
        """Characters before each word and, last, in all of them; without blanks [W + 1]."""
        return np.concatenate([[0], np.cumsum(self.lengths_V[self.ids_W])])

    @cached_property
    def is_symbol_V(self) -> np.ndarray:
        """Whether a word has nothing but punctuation."""
        return ~np.fromiter((bool(word.strip(PUNCTUATION)) for word in self.index), dtype=bool)

    @cached_property
    def is_alphabetic_V(self) -> np.ndarray:
        """Whether a word has a letter."""
        return np.fromiter(map(_has_letter, self.index), dtype=bool, count=len(self.index))


def _has_letter(word: str) -> bool:
    return word.isalpha() or any(map(str.isalpha, word))
