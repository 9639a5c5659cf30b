"""What a document and a part of a question share, word by word: runs of WORDS words, or the whole of a part
of LEAST to WORDS words, in any markup, white space and case.

Both ways to search end here: `word_index` reads the documents that its index names, `scan` reads all. So both
give the same matches. Words are compared as they are spelled, not by hashes.

Shape letters: W words, N places of runs, M words of a document that it may share with a part.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from atelier.engine.data.audit.documents import CorpusDocument
from atelier.engine.data.curation.overlap import LEAST, WORDS, HashTable
from atelier.engine.data.curation.word_hashes import (
    MarkedWords,
    marked_words,
    ngram_hashes,
    spelling,
    unmarked_words,
)

Form = Literal["verbatim", "words", "near"]
_NOTHING = -1  # number of a word that equals none of a part's words


class PartMatch(NamedTuple):
    """A part and a document that share a run of words. `begin` and `end` are characters of the document's
    text around the longest shared run, the first of several; they may lie beyond the line if it is cut.
    `others`: further places with a run that is long enough.
    """

    part: int  # its place among the parts
    document: int  # its line in the corpus
    split: str
    number: int  # the document's, in its split
    id: str
    begin: int
    end: int
    words: int  # of the part
    covered: int  # words of the part in shared runs of LEAST words or more
    form: Form  # verbatim: as written; words: all its words in a row; near: some of them
    others: tuple[tuple[int, int], ...] = ()

    @property
    def share(self) -> float:
        """Of the part's words, those that are covered."""
        return self.covered / self.words


class TooShort(NamedTuple):
    """A part of fewer than LEAST words, which is not searched for."""

    part: int
    words: int


class FoundParts(NamedTuple):
    """The result of a search. `matches` ascend by part, then by document."""

    matches: list[PartMatch]
    too_short: list[TooShort]


class SearchedPart:
    """A part of a question: its words as a reader sees them. Words that are spelled alike have one number."""

    def __init__(self, place: int, text: str) -> None:
        marked = marked_words(text)
        self.place, self.text = place, text.strip()
        self.hash_W = marked.words.hash_W
        self.count = len(self.hash_W)
        self.least = min(self.count, WORDS)  # words of a run that is a match
        spelled = [spelling(marked.within(n, 1)) for n in range(self.count)]
        self.numbers = {word: n for n, word in enumerate(dict.fromkeys(spelled))}
        self.number_W = np.array([self.numbers[word] for word in spelled], dtype=np.int64)

    @cached_property
    def hash_N(self) -> np.ndarray:
        """uint64: of each run of LEAST words, ascending."""
        return np.unique(ngram_hashes(self.hash_W, LEAST))


def parts_of(texts: Sequence[str]) -> tuple[list[SearchedPart], list[TooShort]]:
    """Those that can be searched for, and those that are too short."""
    parts = [SearchedPart(place, text) for place, text in enumerate(texts)]
    too_short = [TooShort(part.place, part.count) for part in parts if part.count < LEAST]
    return [part for part in parts if part.count >= LEAST], too_short


class DocumentWords:
    """A document's words: as a reader sees it and, if it has tags with attributes, as it is written."""

    def __init__(self, document: CorpusDocument) -> None:
        self.document = document
        marked = marked_words(document.text)
        self.views = [marked, unmarked_words(document.text)] if marked.has_attributes else [marked]

    @cached_property
    def hashes(self) -> list[np.ndarray]:
        """uint64: of each run of LEAST words of each view."""
        return [ngram_hashes(view.words.hash_W, LEAST) for view in self.views]

    def match(self, part: SearchedPart) -> PartMatch | None:
        """What the part and the document share, or None if that is no match."""
        shared = [_shared(part, *each) for each in zip(self.views, self.hashes, strict=True)]
        if not (found := [each for each in shared if each is not None]):
            return None
        longest = max(found, key=lambda each: each.length)  # the first of equal ones
        if longest.length < part.least:
            return None
        document, is_whole = self.document, longest.length == part.count
        form = "near" if not is_whole else "verbatim" if part.text in document.text else "words"
        covered = int(np.logical_or.reduce([each.is_covered_W for each in found]).sum())
        return PartMatch(
            part.place, document.place, document.split, document.number, document.id,
            longest.begin, longest.end, part.count, covered, form, longest.others,
        )  # fmt: skip


class _Shared(NamedTuple):
    """The longest run of words that a part and a text share, of at least LEAST, and all such words."""

    length: int
    begin: int
    end: int
    is_covered_W: np.ndarray
    others: tuple[tuple[int, int], ...]  # further places with a run that is a match


def _shared(part: SearchedPart, view: MarkedWords, hash_N: np.ndarray) -> _Shared | None:
    places_N = np.flatnonzero(_among(hash_N, part.hash_N))
    if not len(places_N):
        return None
    is_near = np.zeros(len(view.words.hash_W), dtype=bool)
    for place in range(LEAST):
        is_near[places_N + place] = True
    word_M = np.flatnonzero(is_near)
    # a word that equals none stands where words are left out
    gap_M = np.flatnonzero(np.diff(word_M) > 1) + 1
    number_M = [part.numbers.get(spelling(view.within(word, 1)), _NOTHING) for word in word_M.tolist()]
    number_M = np.insert(np.array(number_M, dtype=np.int64), gap_M, _NOTHING)
    word_M = np.insert(word_M, gap_M, _NOTHING)
    runs = _Runs(part.number_W, number_M)
    is_equal_N = _among(runs.of_part(LEAST), runs.of_text(LEAST))
    if not is_equal_N.any():
        return None
    is_covered_W = np.zeros(part.count, dtype=bool)
    for place in range(LEAST):
        is_covered_W[place : place + len(is_equal_N)] |= is_equal_N
    length, first = runs.longest()
    begin, end = view.begin_W[word_M[first]], view.end_W[word_M[first + length - 1]]
    is_long_N = _among(runs.of_text(part.least), runs.of_part(part.least))
    others = [
        (int(view.begin_W[word_M[a]]), int(view.end_W[word_M[b]]))
        for a, b in _joined(np.flatnonzero(is_long_N).tolist(), part.least)
        if b < first or a >= first + length
    ]
    return _Shared(length, int(begin), int(end), is_covered_W, tuple(others))


def _joined(firsts: Sequence[int], size: int) -> list[tuple[int, int]]:
    """First and last word of runs of `size` words; those that overlap are joined."""
    found: list[tuple[int, int]] = []
    for first in firsts:
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], first + size - 1
        else:
            found.append((first, first + size - 1))
    return found


def _among(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Whether each value is one of the others (np.isin, faster for few)."""
    ascending = np.sort(others)
    places = np.searchsorted(ascending, values)
    places[places == len(ascending)] = 0
    return ascending[places] == values


class _Runs:
    """Numbers for the runs of words of a part and a text, equal if the words are: the rank tables of prefix
    doubling (Karp, Miller and Rosenberg 1972). Time in proportion to both lengths times their logarithm.
    """

    def __init__(self, part_W: np.ndarray, text_M: np.ndarray) -> None:
        self._num_part, self._num_text = len(part_W), len(text_M)
        # a word that no text has keeps runs of the one from reaching into the other
        self._tables = [np.concatenate([part_W, [_NOTHING - 1], text_M])]

    def of_part(self, size: int) -> np.ndarray:
        """int64: the number of each run of `size` words of the part."""
        return self._numbers(size)[: self._num_part - size + 1]

    def of_text(self, size: int) -> np.ndarray:
        return self._numbers(size)[self._num_part + 1 :]

    def longest(self) -> tuple[int, int]:
        """Words of the longest run that both have, and its first place in the text. LEAST words are one."""
        least, most = LEAST, min(self._num_part, self._num_text)
        middle = most  # often a whole part
        while least < most:
            if _among(self.of_text(middle), self.of_part(middle)).any():
                least = middle
            else:
                most = middle - 1
            middle = (least + most + 1) // 2
        return least, int(np.argmax(_among(self.of_text(least), self.of_part(least))))

    def _numbers(self, size: int) -> np.ndarray:
        power = size.bit_length() - 1
        while len(self._tables) <= power:
            last, step = self._tables[-1], 1 << len(self._tables) - 1
            self._tables.append(np.unique(_paired(last, step), return_inverse=True)[1])
        return _paired(self._tables[power], size - (1 << power))


def _paired(numbers: np.ndarray, step: int) -> np.ndarray:
    """A number for each pair of numbers `step` places apart."""
    count = len(numbers) - step
    return (numbers[:count] + 2) * (int(numbers.max()) + 3) + numbers[step:] + 2


def scan(documents: Iterable[CorpusDocument], parts: Sequence[str]) -> FoundParts:
    """Search documents for parts of questions by reading all of them: for a few megabytes of text."""
    searched, too_short = parts_of(parts)
    hashes = [part.hash_N for part in searched]
    owner_A = np.repeat(np.arange(len(searched)), [len(own) for own in hashes])
    hash_A = np.concatenate([np.zeros(0, dtype=np.uint64), *hashes])
    order = np.argsort(hash_A, kind="stable")
    owner_A = owner_A[order]
    hash_G, begin_G = np.unique(hash_A[order], return_index=True)
    end_G = np.append(begin_G[1:], len(hash_A))
    table = HashTable(hash_G, np.arange(len(hash_G)))
    matches: list[PartMatch] = []
    for document in documents:
        each = DocumentWords(document)
        found = {n for own in each.hashes for n in np.unique(table.found(own)[1]).tolist()}
        owners = {n for own in found for n in owner_A[begin_G[own] : end_G[own]].tolist()}
        matches += [match for n in owners if (match := each.match(searched[n])) is not None]
    return FoundParts(sorted(matches, key=lambda match: match[:2]), too_short)
