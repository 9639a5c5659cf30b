"""The documents of a corpus by their numbers, read in order or, by the places of their lines, only some.

A document is a line of the corpus. Its number in its split is its row in `<split>.ends.npy` of the tokens. A
line that is `cut` continues, in the tokens, with the next line of its split. So that a question across this
border is found, the text of such a document goes on with the first AHEAD characters of what follows.
"""

from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from atelier.engine.config.document import parse_object
from atelier.engine.config.error import DamageError
from atelier.engine.data.corpus import DOCUMENTS, HELD_OUT, TRAIN, CorpusLine
from atelier.engine.io.artifact import ArtifactInput
from atelier.engine.io.shards import ENDING, shard_names, size_of, unpacked
from atelier.engine.io.storage import is_local

AHEAD = 4096  # characters
_LONGEST_WORD = 100  # characters
_BLOCK = 1 << 20  # bytes passed over at once
_KEPT = 16  # lines kept while reading some, since a document may need lines that come after it


class CorpusDocument(NamedTuple):
    """A document with text of the lines after it, if it is cut; `size`: characters of its own."""

    place: int  # its line in the corpus, from 0
    split: str
    number: int  # in its split, from 0
    id: str
    text: str
    size: int


class LinePlaces(NamedTuple):
    """Where the lines of a corpus are, so that some can be read alone."""

    offset_D: np.ndarray  # int64: bytes before the line in its file, unpacked
    is_held_out_D: np.ndarray  # bool
    first_F: np.ndarray  # int64: the first line of each file


class _Growing:
    """A document that may need text of lines after its own."""

    def __init__(self, place: int, number: int, line: CorpusLine) -> None:
        self.split = line["split"]
        self._place, self._number, self._line = place, number, line
        self._texts, self._room = [line["text"]], AHEAD
        self.is_complete = not line.get("cut")

    def add(self, line: CorpusLine) -> None:
        head = _head(line["text"], self._room)
        self._texts.append(head)
        self._room -= len(head)
        self.is_complete = len(head) < len(line["text"]) or self._room <= 0 or not line.get("cut")

    def document(self) -> CorpusDocument:
        text = "".join(self._texts)
        own = len(self._line["text"])
        return CorpusDocument(self._place, self.split, self._number, self._line["id"], text, own)


def _head(text: str, most: int) -> str:
    """At most `most` characters, less the begin of a word that they would break."""
    if len(text) <= most or text[most].isspace():
        return text[:most]
    for end in range(most, max(most - _LONGEST_WORD, 0), -1):
        if text[end - 1].isspace():
            return text[:end]
    return text[:most]


def documents_of(lines: Iterable[CorpusLine]) -> Iterator[CorpusDocument]:
    """The documents of all lines of a corpus, in order. Memory: one document, or one that is cut."""
    counts = {TRAIN: 0, HELD_OUT: 0}
    waiting: deque[_Growing] = deque()
    for place, line in enumerate(lines):
        split = line["split"]
        for each in waiting:
            if not each.is_complete and each.split == split:
                each.add(line)
        waiting.append(_Growing(place, counts[split], line))
        counts[split] += 1
        while waiting and waiting[0].is_complete:
            yield waiting.popleft().document()
    yield from (each.document() for each in waiting)


def corpus_files(corpus: ArtifactInput) -> list[str]:
    """The names of the files with a corpus's lines, in order."""
    return shard_names(corpus) or [DOCUMENTS]


class CorpusReader:
    """Reads all lines of a corpus and notes where they are. `num_bytes`: of text, UTF-8."""

    def __init__(self, corpus: ArtifactInput, scratch: Path) -> None:
        self._corpus, self._scratch = corpus, scratch
        self._offsets, self._held_out, self._firsts = array("q"), bytearray(), array("q")
        self.num_bytes = 0

    def lines(self) -> Iterator[CorpusLine]:
        for name in corpus_files(self._corpus):
            self._firsts.append(len(self._offsets))
            offset = 0
            with ExitStack() as stack:
                path, file = _opened(self._corpus, name, self._scratch, stack)
                for number, text in enumerate(file, start=1):
                    line = cast(CorpusLine, parse_object(text, f"{path}, line {number}"))
                    self._offsets.append(offset)
                    self._held_out.append(line["split"] == HELD_OUT)
                    offset += len(text)
                    self.num_bytes += size_of(line["text"])
                    yield line

    def places(self) -> LinePlaces:
        """Of the lines read."""
        held_out = np.frombuffer(bytes(self._held_out), dtype=bool)
        return LinePlaces(np.array(self._offsets), held_out, np.array(self._firsts))


class SomeDocuments:
    """Reads some documents of a corpus: only the files that have them, each once, up to the last of them."""

    def __init__(self, corpus: ArtifactInput, scratch: Path, places: LinePlaces) -> None:
        self._corpus, self._scratch, self._places = corpus, scratch, places
        self._line_N = [np.flatnonzero(places.is_held_out_D == is_held_out) for is_held_out in (False, True)]
        self._stack, self._open, self._at = ExitStack(), -1, 0
        self._kept: dict[int, CorpusLine] = {}

    def each(self, wanted: Iterable[int]) -> Iterator[CorpusDocument]:
        """The documents at these places, which ascend."""
        try:
            for place in wanted:
                yield self._document(place)
        finally:
            self._close()

    def _document(self, place: int) -> CorpusDocument:
        line = self._line(place)
        side_N = self._line_N[int(self._places.is_held_out_D[place])]
        number = int(np.searchsorted(side_N, place))
        found = _Growing(place, number, line)
        for follower in side_N[number + 1 :]:
            if found.is_complete:
                break
            found.add(self._line(int(follower)))
        return found.document()

    def _line(self, place: int) -> CorpusLine:
        if place not in self._kept:
            if len(self._kept) >= _KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[place] = self._read(place)
        return self._kept[place]

    def _read(self, place: int) -> CorpusLine:
        number = int(np.searchsorted(self._places.first_F, place, side="right")) - 1
        offset = int(self._places.offset_D[place])
        if number != self._open or offset < self._at:
            self._close()
            name = corpus_files(self._corpus)[number]
            self._path, self._file = _opened(self._corpus, name, self._scratch, self._stack)
            self._open, self._at = number, 0
        if self._file.seekable():
            self._file.seek(offset)
        else:
            while self._at < offset:
                passed = len(self._file.read(min(_BLOCK, offset - self._at)))
                if not passed:
                    raise DamageError(f"{self._path}: ends before document {place}, unlike its index says")
                self._at += passed
        text = self._file.readline()
        self._at = offset + len(text)
        return cast(CorpusLine, parse_object(text, f"{self._path}, document {place}"))

    def _close(self) -> None:
        self._stack.close()
        self._open = -1


def _opened(corpus: ArtifactInput, name: str, scratch: Path, stack: ExitStack) -> tuple[Path, BufferedReader]:
    """A verified file of a corpus, unpacked. A copy of a remote one is removed when the stack closes."""
    path = corpus.file(name, scratch)
    if not is_local(corpus.url):
        stack.callback(path.unlink, missing_ok=True)
    return path, stack.enter_context(unpacked(path) if name.endswith(ENDING) else open(path, "rb"))
