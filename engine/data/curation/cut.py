"""Cut found text out of documents, with a margin and to the ends of sentences.

A sentence ends

- behind a run of `.`, `!`, `?` or `…`, and the closing quotes and brackets after it, where white space or the
  end of the text follows;
- behind 。！？｡．।॥؟۔ and the closing quotes and brackets after them;
- at an empty line.

The white space after a sentence belongs to it, as in Unicode's text segmentation (UAX 29), so sentences cover
the whole text. A cut begins where the sentence of the 200th character before the found text begins, and ends
where the sentence of the 200th character behind it ends: for found text from `begin` to `end`, the sentences
of the characters `begin - 200` and `end + 199`. A text without ends of sentences there is cut to its own
begin or end.

Differences from Megatron-LM's `filter_ngrams.py`:

- There the margin on the right is counted from the first n-gram found, so that of a question with more than
  13 words is shorter, and found text within a margin extends no cut.
- There each `.`, `!` and `?` ends a sentence (also in 3.14), and nothing else does. White space after a
  sentence belongs to the next piece.
- There pieces of exactly 200 characters are dropped, and dropped text is not counted.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable
from typing import Literal, NamedTuple

MARGIN = 200  # characters cut on each side
SHORTEST = 200  # characters of a piece that is kept
MOST_PIECES = 10  # of a document that is kept
_CLOSING = "\"')\\]}»”’」』）】》"
_END = re.compile(
    rf"(?<![.!?…])[.!?…]++[{_CLOSING}]*+(?:\s++|\Z)"
    rf"|[。！？｡．।॥؟۔]++[{_CLOSING}]*+\s*+"
    r"|\n[^\S\n]*+\n\s*+"
)

Dropped = Literal["", "nothing left", "too many pieces"]


class Cut(NamedTuple):
    """A document after the cut. Bytes are those in UTF-8; lone surrogates count 3 bytes each. The bytes kept
    and those removed for each reason add up to the document's.
    """

    pieces: list[tuple[int, int]]  # begin and end, in characters of the document; none if it is dropped
    dropped: Dropped  # why no piece is kept
    kept_bytes: int
    overlap_bytes: int  # in cuts
    short_bytes: int  # in pieces under `shortest` characters
    pieces_bytes: int  # in pieces of a document that has too many


def cut(
    text: str,
    spans: Iterable[tuple[int, int]],
    *,
    margin: int = MARGIN,
    shortest: int = SHORTEST,
    most_pieces: int = MOST_PIECES,
) -> Cut:
    """Cut spans (begin, end, in characters) with `margin` characters on each side and to the ends of
    sentences. Cuts that overlap or touch merge. Pieces under `shortest` characters are dropped. A document
    that has more than `most_pieces` pieces then is dropped whole. Without spans the document is one piece,
    however short.
    """
    cuts = cuts_of(text, spans, margin)
    if not cuts:
        return Cut([(0, len(text))], "", _bytes(text), 0, 0, 0)
    between = zip([0, *(end for _, end in cuts)], [*(begin for begin, _ in cuts), len(text)], strict=True)
    pieces: list[tuple[int, int]] = []
    short_bytes = 0
    for begin, end in between:
        if end - begin >= shortest:
            pieces.append((begin, end))
        else:
            short_bytes += _bytes(text[begin:end])
    overlap_bytes = sum(_bytes(text[begin:end]) for begin, end in cuts)
    piece_bytes = sum(_bytes(text[begin:end]) for begin, end in pieces)
    if len(pieces) > most_pieces:
        return Cut([], "too many pieces", 0, overlap_bytes, short_bytes, piece_bytes)
    return Cut(pieces, "" if pieces else "nothing left", piece_bytes, overlap_bytes, short_bytes, 0)


def cuts_of(text: str, spans: Iterable[tuple[int, int]], margin: int = MARGIN) -> list[tuple[int, int]]:
    """Begin and end of each cut, in order and apart from each other."""
    found = sorted((begin, end) for begin, end in spans if begin < end)
    if not found:
        return []
    begins = [0, *(end.end() for end in _END.finditer(text))]  # of sentences
    cuts: list[tuple[int, int]] = []
    for span_begin, span_end in found:
        first, last = max(span_begin - margin, 0), min(span_end + margin, len(text)) - 1
        begin = begins[bisect_right(begins, first) - 1]
        following = bisect_right(begins, last)
        end = begins[following] if following < len(begins) else len(text)
        if cuts and begin <= cuts[-1][1]:
            cuts[-1] = (cuts[-1][0], max(end, cuts[-1][1]))
        else:
            cuts.append((begin, end))
    return cuts


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
