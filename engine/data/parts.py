"""Long documents in parts, which the split can tell apart, and which are short enough to be kept as a line.

A part ends at a line whose own text says so, not at a number of characters: where two documents have pages in
common, most of their parts are the same, and copies are on one side.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from zlib import crc32

SMALLEST = 1024  # characters of a part
LONGEST = 8 << 20  # characters of a line of a corpus: as JSON 48 MiB at most, which document.py reads
OF_A_SHARE = 32  # parts in what is to be held out
ENDS = 4  # one line in so many may end a part
_LINE = re.compile(r"[^\n]*\n|[^\n]+")


def part_size(share: float) -> int:
    """Characters of a part, about, where `share` characters are to be held out."""
    return int(min(max(share / OF_A_SHARE, SMALLEST), LONGEST // 3))


def parts(text: str, size: int) -> list[str]:
    """The text in parts of `size` characters, about: from half of it to twice as many. They end with a
    paragraph, else a line, else a word, else anywhere.
    """
    ends, place, last = [0], 0, ""
    for line in _lines(text, size // 4):
        length = place + len(line) - ends[-1]
        is_place = not line.strip() or length >= size  # a paragraph's end, or one was waited for
        place += len(line)
        last = line if line.strip() else last
        may_end = length >= size // 2 and is_place and not crc32(last.encode(errors="surrogatepass")) % ENDS
        if may_end or length >= size + size // 2:
            ends.append(place)
    if place > ends[-1]:
        short = place - ends[-1] < size // 2 and len(ends) > 1
        ends[-1:] = [place] if short else [ends[-1], place]
    return [text[begin:end] for begin, end in pairwise(ends)]


def _lines(text: str, most: int) -> Iterator[str]:
    """The lines of a text; those longer than `most` in pieces, which end with a blank where there is one."""
    for found in _LINE.finditer(text):
        line, begin = found[0], 0
        while len(line) - begin > most:
            blank = max(line.rfind(" ", begin, begin + most), line.rfind("\t", begin, begin + most))
            end = blank + 1 if blank >= begin else begin + most
            yield line[begin:end]
            begin = end
        yield line[begin:]
