"""Find the text of evaluation questions in documents: runs of 13 words that both have, in any markup.

The rule is that of GPT-3 (Brown et al. 2020, appendix C) as in Megatron-LM's `filter_ngrams.py`. Two passes:
count in how many documents each run of words lies (the counts of shards are summed), then cut those found in
few documents. Runs found in many are common phrases, which tell nothing about a question.

Differences from `filter_ngrams.py`:

- Markup does not hide a question (`word_hashes`). In scripts without spaces a character counts as a word.
- All n-grams of a text are found and counted. There the search goes on behind the first one. So of a
  quotation longer than 13 words only each 13th n-gram is counted, the others stay below the limit, and a
  common quotation is cut all the same.
- Places are those in the document. There the end of an n-gram is estimated as if its words were one space
  apart.
- Texts below 8 words are listed. There they are left out silently. Both match texts of 8 to 12 words whole.
- Questions may come from any set, with all their parts; there from a list of sets, the question only.
- Hash matches are verified by the words; there the words are the keys. Both count a document once for each
  n-gram, however often it repeats it.
- The cut differs as the module `cut` says.

Shape letters: W words, G n-grams, M matches.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from atelier.engine.data.curation.word_hashes import (
    MarkedWords,
    marked_words,
    ngram_hashes,
    spelling,
    unmarked_words,
)

WORDS = 13  # of an n-gram
LEAST = 8  # words of a text that can be found
COMMON = 10  # documents in which a common n-gram lies
NAMES = 100  # questions that are named for an n-gram
_FILTER_BITS = (16, 26)  # of the table that sorts out most hashes: fewest and most
_PER_NGRAM = 4  # bits: its size as a multiple of the n-grams


class Question(NamedTuple):
    set: str
    id: str
    parts: tuple[str, ...]  # texts such as question and answer; no n-gram spans two


class Uncheckable(NamedTuple):
    """A part of a question that is too short to be found."""

    set: str
    id: str
    part: int  # its place in `Question.parts`
    words: int


class CommonNgram(NamedTuple):
    """An n-gram that is left in the documents because it lies in many."""

    text: str
    documents: int  # in which it lies
    questions: list[tuple[str, str]]  # set and id, at most `NAMES`
    num_questions: int


class Matches(NamedTuple):
    """The n-grams in a text, by place. Places are characters of the text with its markup."""

    begin_M: np.ndarray  # int64
    end_M: np.ndarray
    ngram_M: np.ndarray  # int64: numbers of n-grams


class QuestionOverlap:
    """The n-grams of a list of questions, numbered in the order of their first appearance.

    `uncheckable` lists the parts of fewer than `least` words. `clashes` counts n-grams that are not searched
    for because another one has the same hash. Memory: the questions' text and about 60 bytes for each n-gram.
    """

    def __init__(self, questions: Iterable[Question], *, words: int = WORDS, least: int = LEAST) -> None:
        self.uncheckable: list[Uncheckable] = []
        self._names: list[tuple[str, str]] = []
        self._spelled: list[str] = []  # parts as words in lower case, one space apart
        hashes, rows = self._read(questions, words, least)
        hash_A = np.concatenate([np.empty(0, dtype=np.uint64), *hashes])  # of each appearance of an n-gram
        # question, part, begin and end in the spelled part
        row_A4 = np.concatenate([np.empty((0, 4), dtype=np.int64), *rows])
        _, first_A, ngram_A = np.unique(hash_A, return_index=True, return_inverse=True)
        order = np.argsort(first_A)
        number = np.empty_like(order)
        number[order] = np.arange(len(order))
        ngram_A, first_G = number[ngram_A], first_A[order]
        self._row_G3 = row_A4[first_G, 1:]
        is_clash_A = self._clashes(ngram_A, row_A4[:, 1:])
        self.clashes = int(is_clash_A.sum())
        pairs = np.unique(np.stack([ngram_A, row_A4[:, 0]], axis=1)[~is_clash_A], axis=0)
        self._question_P = pairs[:, 1]
        self._begin_G = np.searchsorted(pairs[:, 0], np.arange(len(first_G) + 1))
        words_G = np.array([self.text(n).count(" ") + 1 for n in range(len(first_G))])
        self._tables = [
            (int(size), HashTable(hash_A[first_G[words_G == size]], np.flatnonzero(words_G == size)))
            for size in np.unique(words_G)
        ]

    def __len__(self) -> int:
        """Number of n-grams."""
        return len(self._row_G3)

    def text(self, ngram: int) -> str:
        """The words of an n-gram in lower case, one space apart."""
        part, begin, end = self._row_G3[ngram].tolist()
        return self._spelled[part][begin:end]

    def questions(self, ngram: int) -> list[tuple[str, str]]:
        """Set and id of the questions that contain an n-gram: the first `NAMES` of `num_questions`."""
        begin, end = self._begin_G[ngram : ngram + 2].tolist()
        return [self._names[n] for n in self._question_P[begin : min(end, begin + NAMES)].tolist()]

    def num_questions(self, ngram: int) -> int:
        return int(self._begin_G[ngram + 1] - self._begin_G[ngram])

    def found(self, text: str) -> Matches:
        """All places of n-grams in a text: as a reader sees it, and, if it has tags with attributes, as it is
        written. Matching hashes are verified by the words.
        """
        marked = marked_words(text)
        rows = self._found(marked)
        if marked.has_attributes:
            rows += self._found(unmarked_words(text))
        row_M3 = np.concatenate([np.zeros((0, 3), dtype=np.int64), *rows])
        row_M3 = row_M3[np.lexsort(row_M3.T[::-1])]
        is_new_M = np.ones(len(row_M3), dtype=bool)
        is_new_M[1:] = (row_M3[1:] != row_M3[:-1]).any(axis=1)
        return Matches(*row_M3[is_new_M].T)

    def add_counts(self, counts_G: np.ndarray, matches: Matches) -> None:
        """Add one document to the counts (int64 [G], at first zeros): 1 for each n-gram in it."""
        counts_G[np.unique(matches.ngram_M)] += 1

    def common(self, counts_G: np.ndarray, least: int = COMMON) -> list[CommonNgram]:
        """The n-grams that lie in `least` documents or more; most frequent first."""
        found = [n for n in np.argsort(-counts_G, kind="stable").tolist() if counts_G[n] >= least]
        return [
            CommonNgram(self.text(n), int(counts_G[n]), self.questions(n), self.num_questions(n))
            for n in found
        ]

    def spans(self, matches: Matches, counts_G: np.ndarray, least: int = COMMON) -> list[tuple[int, int]]:
        """Begin and end of the matches to cut: those of n-grams that are not common."""
        is_cut_M = counts_G[matches.ngram_M] < least
        return list(zip(matches.begin_M[is_cut_M].tolist(), matches.end_M[is_cut_M].tolist(), strict=True))

    def _read(
        self, questions: Iterable[Question], words: int, least: int
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        hashes: list[np.ndarray] = []
        rows: list[np.ndarray] = []
        for number, question in enumerate(questions):
            self._names.append((question.set, question.id))
            for place, part in enumerate(question.parts):
                marked = marked_words(part)
                count = len(marked.begin_W)
                if count < least:
                    self.uncheckable.append(Uncheckable(question.set, question.id, place, count))
                    continue
                spelled = [spelling(marked.within(n, 1)) for n in range(count)]
                size = min(count, words)
                end_W = np.cumsum([len(word) + 1 for word in spelled]) - 1
                begin_W = end_W - [len(word) for word in spelled]
                found = ngram_hashes(marked.words.hash_W, size)
                row_A4 = np.empty((len(found), 4), dtype=np.int64)
                row_A4[:, 0], row_A4[:, 1] = number, len(self._spelled)
                row_A4[:, 2], row_A4[:, 3] = begin_W[: len(found)], end_W[size - 1 :]
                hashes.append(found)
                rows.append(row_A4)
                self._spelled.append(" ".join(spelled))
        return hashes, rows

    def _clashes(self, ngram_A: np.ndarray, row_A3: np.ndarray) -> np.ndarray:
        """[A] bool: whether an n-gram has other words than the first one with its hash."""
        texts = zip(ngram_A.tolist(), row_A3.tolist(), strict=True)
        clashes = [self.text(ngram) != self._spelled[part][begin:end] for ngram, (part, begin, end) in texts]
        return np.array(clashes, dtype=bool)

    def _found(self, marked: MarkedWords) -> list[np.ndarray]:
        """For each size of n-grams: begin, end and number of each match, int64 [M, 3]."""
        return [self._of_size(marked, size, table) for size, table in self._tables]

    def _of_size(self, marked: MarkedWords, size: int, table: "HashTable") -> np.ndarray:
        first_M, ngram_M = table.found(ngram_hashes(marked.words.hash_W, size))
        last_M = first_M + size - 1
        ngrams = ngram_M.tolist()
        begins, ends = marked.words.begin_W[first_M].tolist(), marked.words.end_W[last_M].tolist()
        known: dict[tuple[str, int], bool] = {}  # a text may repeat one n-gram many times
        is_equal_M = np.zeros(len(ngrams), dtype=bool)
        for n, (begin, end) in enumerate(zip(begins, ends, strict=True)):
            key = (marked.plain[begin:end], ngrams[n])
            if (is_equal := known.get(key)) is None:
                words = [marked.within(place, 1) for place in range(first_M[n], last_M[n] + 1)]
                is_equal = known[key] = " ".join(map(spelling, words)) == self.text(ngrams[n])
            is_equal_M[n] = is_equal
        return np.stack([marked.begin_W[first_M], marked.end_W[last_M], ngram_M], axis=1)[is_equal_M]


class HashTable:
    """The numbers of n-grams by their hashes."""

    def __init__(self, hash_G: np.ndarray, number_G: np.ndarray) -> None:
        order = np.argsort(hash_G)
        self._hash_G, self._number_G = hash_G[order], number_G[order]
        bits = min(max(len(hash_G).bit_length() + _PER_NGRAM, _FILTER_BITS[0]), _FILTER_BITS[1])
        self._shift = np.uint64(64 - bits)
        self._may_be = np.zeros(1 << bits, dtype=bool)
        self._may_be[hash_G >> self._shift] = True

    def found(self, hash_W: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The places of known hashes, and the numbers of their n-grams."""
        places = np.flatnonzero(self._may_be[hash_W >> self._shift])
        hashes = hash_W[places]
        found = np.searchsorted(self._hash_G, hashes)
        found[found == len(self._hash_G)] = 0
        is_known = self._hash_G[found] == hashes
        return places[is_known], self._number_G[found[is_known]]
