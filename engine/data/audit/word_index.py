"""Find parts of questions in a corpus by the index of its words (`index_words`).

A part of 13 words or more is searched for by each of its windows of 13 words, a shorter one as a whole. A
document that shares a window has all of the window's kept runs, so no match is missed. Which documents have
all is told by the index alone; that they share the window is verified on their text.

Shape letters: Q windows, C kept runs of a window, U different kept runs, P pairs of window and document.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import cast
from unicodedata import unidata_version

import numpy as np

from atelier.engine.config.document import whole_of
from atelier.engine.config.error import ConfigError, DamageError
from atelier.engine.data.audit.documents import CorpusDocument, LinePlaces, SomeDocuments
from atelier.engine.data.audit.index_words import INDEX, REMAINDER
from atelier.engine.data.audit.kept_runs import MOST, RUN, WINDOW, windows_of
from atelier.engine.data.audit.part_match import DocumentWords, FoundParts, PartMatch, SearchedPart, parts_of
from atelier.engine.io.artifact import ArtifactInput

_PAIRS = 1 << 20  # pairs of window and document at once


class WordIndex:
    """The index of the words of a corpus (fingerprint `corpus`); its arrays are read as they are needed."""

    def __init__(
        self, corpus: str, bits: int, buckets: np.ndarray, remainder_E: np.ndarray, document_E: np.ndarray,
        places: LinePlaces,
    ) -> None:  # fmt: skip
        self.corpus, self._bits, self._places = corpus, bits, places
        self._buckets, self._remainder_E, self._document_E = buckets, remainder_E, document_E

    @classmethod
    def open(cls, artifact: ArtifactInput, scratch: Path) -> "WordIndex":
        """Raises ConfigError if the index was made with other words than this program's."""
        about = artifact.json(INDEX, scratch)
        own = {"run": RUN, "window": WINDOW, "unicode": unidata_version}
        if other := [
            f"{key} {about.get(key)}, not {value}" for key, value in own.items() if about.get(key) != value
        ]:
            raise ConfigError(artifact.url, f"an index with {', '.join(other)}", "index the corpus again")
        arrays = [
            np.load(artifact.file(f"{name}.npy", scratch), mmap_mode="r", allow_pickle=False)
            for name in ("buckets", "remainders", "documents", "offsets", "held_out")
        ]
        buckets, remainder_E, document_E, offset_D, is_held_out_D = arrays
        bits, files = whole_of(about["bits"]), cast(dict[str, int], about["files"])
        if len(buckets) != (1 << bits) + 1 or not len(remainder_E) == len(document_E) == buckets[-1]:
            raise DamageError(f"{artifact.url}: the sizes of its arrays do not fit one another")
        places = LinePlaces(offset_D, is_held_out_D, np.array(list(files.values()), dtype=np.int64))
        return cls(str(about["corpus"]), bits, buckets, remainder_E, document_E, places)

    def __len__(self) -> int:
        """Number of documents."""
        return len(self._places.offset_D)

    def candidates(self, parts: Sequence[str]) -> list[np.ndarray]:
        """For each part the documents that may match it, none missing: lines of the corpus, int64, ascending.
        None for a part that is too short.
        """
        found: list[np.ndarray] = [np.zeros(0, dtype=np.int64) for _ in parts]
        searched, _ = parts_of(parts)
        for part, documents in zip(searched, self._candidates(searched), strict=True):
            found[part.place] = documents
        return found

    def matches(self, parts: Sequence[str], corpus: ArtifactInput, scratch: Path) -> FoundParts:
        """The parts and documents that share a run of words, verified on the documents' text. Raises
        ConfigError if the index is of another corpus.
        """
        if corpus.record.fingerprint != self.corpus:
            own, other = self.corpus[:16], corpus.record.fingerprint[:16]
            raise ConfigError(corpus.url, f"corpus {other}, but the index is of {own}", "index this one")
        searched, too_short = parts_of(parts)
        found = self._candidates(searched)
        document_P = np.concatenate([np.zeros(0, dtype=np.int64), *found])
        part_P = np.repeat(np.arange(len(searched)), [len(each) for each in found])
        order = np.argsort(document_P, kind="stable")
        pairs = zip(document_P[order].tolist(), part_P[order].tolist(), strict=True)
        wanted = [(place, [n for _, n in each]) for place, each in groupby(pairs, key=lambda pair: pair[0])]
        reader = SomeDocuments(corpus, scratch, self._places)
        matches: list[PartMatch] = []
        for document, (_, numbers) in zip(reader.each(place for place, _ in wanted), wanted, strict=True):
            each = DocumentWords(document)
            matches += [match for n in numbers if (match := each.match(searched[n])) is not None]
        return FoundParts(sorted(matches, key=lambda match: match[:2]), too_short)

    def documents(
        self, corpus: ArtifactInput, scratch: Path, places: Iterable[int]
    ) -> Iterator[CorpusDocument]:
        """The documents at these lines of the corpus, which ascend."""
        return SomeDocuments(corpus, scratch, self._places).each(places)

    def _candidates(self, parts: Sequence[SearchedPart]) -> list[np.ndarray]:
        """As `candidates`, for parts that are long enough."""
        windows = [windows_of(part.hash_W) for part in parts]
        part_Q = np.repeat(np.arange(len(parts)), [len(rows) for rows in windows])
        hash_QC = np.concatenate([np.zeros((0, MOST), dtype=np.uint64), *windows])
        hash_U, number_QC = np.unique(hash_QC, return_inverse=True)
        number_QC = number_QC.reshape(hash_QC.shape)
        begin_U, end_U = self._entries(hash_U)
        # the rarest run first: the documents with it are looked for in the lists of the others
        count_QC = (end_U - begin_U)[number_QC]
        order_QC = np.argsort(count_QC, axis=1, kind="stable")
        number_QC = np.take_along_axis(number_QC, order_QC, axis=1)
        count_Q = count_QC.min(axis=1)
        upto_Q = np.cumsum(count_Q)
        pairs = [np.zeros(0, dtype=np.int64)]
        for first in range(0, int(count_Q.sum()), _PAIRS):
            number_P = np.arange(first, min(first + _PAIRS, int(upto_Q[-1])))
            window_P = np.searchsorted(upto_Q, number_P, side="right")
            rarest_P = number_QC[window_P, 0]
            entry_P = begin_U[rarest_P] + number_P - (upto_Q - count_Q)[window_P]
            document_P = self._document_E[entry_P].astype(np.int64)
            for place in range(1, MOST):
                other_P = number_QC[window_P, place]
                has_P = self._holds(begin_U[other_P], end_U[other_P], document_P)
                window_P, document_P = window_P[has_P], document_P[has_P]
            pairs.append(np.unique(part_Q[window_P] << 32 | document_P))
        pair_P = np.unique(np.concatenate(pairs))
        ends = np.searchsorted(pair_P >> 32, np.arange(1, len(parts)))
        return np.split(pair_P & 0xFFFFFFFF, ends) if parts else []

    def _entries(self, hash_U: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Begin and end of the entries of each kept run."""
        bucket_U = (hash_U >> np.uint64(64 - self._bits)).astype(np.int64)
        remainder_U = (hash_U >> np.uint64(64 - self._bits - REMAINDER)) & np.uint64((1 << REMAINDER) - 1)
        remainder_U = remainder_U.astype(np.int64)
        begin_U, end_U = (self._buckets[bucket_U + more].astype(np.int64) for more in (0, 1))
        first_U = _first(self._remainder_E, begin_U, end_U, remainder_U)
        return first_U, _first(self._remainder_E, first_U, end_U, remainder_U + 1)

    def _holds(self, begin_P: np.ndarray, end_P: np.ndarray, document_P: np.ndarray) -> np.ndarray:
        """Whether entries begin to end, ascending by document, have a document."""
        place_P = _first(self._document_E, begin_P, end_P, document_P)
        has_P = place_P < end_P
        has_P[has_P] = self._document_E[place_P[has_P]] == document_P[has_P]
        return has_P


def _first(values: np.ndarray, begin: np.ndarray, end: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The first place from begin to end, where values ascend, of a value that is not below the wanted one;
    end if there is none.
    """
    begin, end = begin.copy(), end.copy()
    open_ = np.flatnonzero(begin < end)
    while len(open_):
        middle = (begin[open_] + end[open_]) >> 1
        is_below = values[middle] < wanted[open_]
        begin[open_[is_below]] = middle[is_below] + 1
        end[open_[~is_below]] = middle[~is_below]
        open_ = open_[begin[open_] < end[open_]]
    return begin
