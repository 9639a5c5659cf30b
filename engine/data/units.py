"""Mark the tokens of a text's units (MaskingUnits): the task `encode` writes a mark for each token.

Shape letters: N tokens.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from unicodedata import category, is_normalized, normalize

import numpy as np

from atelier.engine.config.annotations import OF_TRIPLES, MaskingUnits
from atelier.engine.config.base import Json
from atelier.engine.config.error import DataError
from atelier.engine.config.task.prepare import EncodeConfig
from atelier.engine.data.row import Column, text_problem
from atelier.engine.data.scripts import is_unseparated
from atelier.engine.data.source_reader import SourceReader
from atelier.engine.data.words_of_text import Span, cutter
from atelier.engine.io.process import Progress

PLAIN, FIRST, INNER = 0, 1, 2  # marks: no unit; a unit's first token; a further one
BEGIN = 2  # characters by which names are looked up
SHORTEST = 2  # characters of a name
PLACE = "data.units"


class NameFinder:
    """Where any of these names is in a text: the longest at each place, not as a part of a longer word. Names
    and text are compared in Unicode's normal form C. `num_short`: names that are too short to be looked for.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._by_begin: dict[str, list[str]] = defaultdict(list)
        self.found: set[str] = set()
        self.num_short = 0
        every = {normalize("NFC", name.strip()) for name in names}
        for name in sorted(every, key=lambda name: (-len(name), name)):
            if len(name) < SHORTEST:
                self.num_short += 1
            else:
                self._by_begin[name[:BEGIN]].append(name)

    def __len__(self) -> int:
        return sum(map(len, self._by_begin.values()))

    def spans(self, text: str) -> Iterator[Span]:
        """In order, as places of the text as it is; they do not overlap."""
        if is_normalized("NFC", text):
            yield from self._spans(text)
            return
        text, places = _composed(text)
        for begin, end in self._spans(text):
            yield places[begin], places[end]

    def _spans(self, text: str) -> Iterator[Span]:
        at = 0
        while at < len(text):
            near = self._by_begin.get(text[at : at + BEGIN], ())
            name = next((name for name in near if is_there(name, text, at)), "")
            if name:
                self.found.add(name)
                yield at, at + len(name)
            at += len(name) or 1


def _composed(text: str) -> tuple[str, list[int]]:
    """The text in normal form C, and where each of its characters, and its end, is in the text as it was."""
    starts = [at for at, sign in enumerate(text) if at == 0 or not _goes_on(sign)]
    parts, places = list[str](), list[int]()
    for begin, end in pairwise([*starts, len(text)]):
        parts.append(normalize("NFC", text[begin:end]))
        is_same = parts[-1] == text[begin:end]
        places += range(begin, end) if is_same else [begin] + [end] * (len(parts[-1]) - 1)
    return "".join(parts), [*places, len(text)]


def _goes_on(sign: str) -> bool:
    """Whether normal form C may join it to the character before: a mark, or a later part of a Korean
    syllable.
    """
    return category(sign)[0] == "M" or "\u1160" <= sign <= "\u11ff"


def is_there(name: str, text: str, at: int) -> bool:
    """Whether the name is at this place, between words where words are separated by blanks."""
    end = at + len(name)
    if not text.startswith(name, at):
        return False
    before, after = text[at - 1 : at] if at else "", text[end : end + 1]
    return not (_joins(before, name[0]) or _joins(name[-1], after))


def _joins(one: str, other: str) -> bool:
    """Whether two neighbours are of one word: both letters, digits or marks of a script that separates
    words.
    """
    return all(category(sign)[0] in "LMN" and not is_unseparated(sign) for sign in (one or " ", other or " "))


def names_in(config: EncodeConfig, triples: Iterable[Mapping[str, Json]], progress: Progress) -> list[str]:
    """The names of entities: of files, or heads and tails of triples. Raises DataError for a row without."""
    if config.units.entities == OF_TRIPLES:
        return [str(line[end]) for line in triples for end in ("head", "tail")]
    field, found = config.units.field, list[str]()
    with SourceReader(on_error="stop", place="", progress=progress) as reader:
        for path, expected in config.files:
            for _, where, row in reader.rows(path, expected, [Column(names=(field,))]):
                if problem := text_problem(row, field):
                    raise DataError(f"{where}: {problem}; {PLACE}.field names it")
                found.append(str(row[field]))
    return found


class UnitFinder:
    """The units of texts: names first, then words of scripts without blanks between them."""

    def __init__(self, spec: MaskingUnits, names: Iterable[str], scratch: Path) -> None:
        self.spec, self.names = spec, NameFinder(names)
        self._words: Callable[[str], Iterator[Span]] | None = None
        if spec.words != "spelling":
            is_cut = spec.words == "jieba"
            self._words = _of_words(cutter(scratch, f"{PLACE}.words")) if is_cut else _characters

    def check(self, place: str, name: str, progress: Progress, sources: int = 1) -> None:
        """Say how many names were found in the text called `name`. Raise DataError if names were asked for
        and none was found, unless the text has other sources.
        """
        if not self.spec.entities:
            return
        found, known, short = len(self.names.found), len(self.names), self.names.num_short
        if not found and sources == 1:
            raise DataError(
                f"{place}: none of its {known} names is in {name}; names have {SHORTEST} characters or more,"
                f" and are whole words; {short} are too short"
            )
        if found < known or short:
            progress.warn(f"{place}: {found} of {known} names are in {name}; {short} are too short")

    def spans(self, text: str) -> list[Span]:
        """In order; they do not overlap."""
        if self._words is None:
            return list(self.names.spans(text))
        found, at = list[Span](), 0
        for begin, end in [*self.names.spans(text), (len(text), len(text))]:
            found += [(at + one, at + other) for one, other in self._words(text[at:begin])]
            found += [(begin, end)] if begin < end else []
            at = end
        return found


def _characters(text: str) -> Iterator[Span]:
    for at, sign in enumerate(text):
        if is_unseparated(sign):
            yield at, at + 1


def _of_words(cut: Callable[[str], Iterator[Span]]) -> Callable[[str], Iterator[Span]]:
    """Only the words of scripts without blanks: others are words by their spelling."""

    def found(text: str) -> Iterator[Span]:
        for begin, end in cut(text):
            if is_unseparated(text[begin]):
                yield begin, end

    return found


def marks_of(spans: Sequence[Span], offsets: Sequence[Span]) -> np.ndarray:
    """[N] uint8: PLAIN, FIRST or INNER of each token with these characters. A token of two units belongs to
    the later one.
    """
    marks_N = np.zeros(len(offsets), dtype=np.uint8)
    if not spans:
        return marks_N
    begins, ends = np.array(spans, dtype=np.int64).T
    last_N = np.array([end for _, end in offsets], dtype=np.int64) - 1
    unit_N = np.searchsorted(begins, last_N, side="right") - 1
    is_inside_N = (unit_N >= 0) & (last_N < ends[np.maximum(unit_N, 0)])
    unit_N[~is_inside_N] = -1
    is_first_N = np.diff(unit_N, prepend=-2) != 0
    marks_N[is_inside_N] = np.where(is_first_N[is_inside_N], FIRST, INNER)
    return marks_N
