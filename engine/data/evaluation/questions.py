"""Questions of an evaluation set before their shots are drawn, and the rows that they are made from."""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from atelier.engine.config.base import Json
from atelier.engine.config.error import DataError
from atelier.engine.config.evaluation_set import Metric, QuestionKind
from atelier.engine.data.row import kind_of
from atelier.engine.data.source import Files
from atelier.engine.data.source_reader import SourceReader

LEAST_WORDS, LEAST_LETTERS = 2, 12  # of a row's text that is one of a question's parts: one of both
MOST_DEEP = 32  # levels of lists and objects in a row
BATCH = 256  # rows rendered at once


class PosedRow(NamedTuple):
    """A row and its place, for errors."""

    where: str
    values: dict[str, Json]


@dataclass(frozen=True, kw_only=True)
class AskedQuestion:
    """A question as it is asked. `shot`: its text as a solved example. `shared`: its passage, else the
    longest of its row's texts that is asked, '' if none. Other fields as of a QuestionLine.
    """

    where: str
    id: str
    context: str = ""
    contexts: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    answer: int = 0
    targets: tuple[str, ...] = ()
    answer_text: str
    parts: tuple[str, ...]
    shared: str = ""
    shot: str = ""
    group: str = ""  # '' = found by what questions share
    item: str = ""
    slice: str = ""
    values: tuple[float, ...] = ()

    @property
    def key(self) -> tuple[str | tuple[str, ...], ...]:
        """Equal for questions that ask the same."""
        return self.context, self.contexts, self.options, () if self.context else self.targets


@dataclass(frozen=True, kw_only=True)
class QuestionSource:
    """What a source asks: all its questions, and the pool of solved examples in its order."""

    kind: QuestionKind
    questions: list[AskedQuestion]
    pool: list[AskedQuestion]
    pool_name: str = ""  # for errors
    is_first: bool = False  # the shots are the pool's first ones, not drawn
    description: str = ""
    until: tuple[str, ...] = ()
    max_tokens: int = 64
    metrics: tuple[Metric, ...] = ()


def parts_of(row: dict[str, Json], asked: str) -> tuple[tuple[str, ...], str]:
    """The texts of a row that are asked word for word and have a few words, else all that is asked; and the
    longest of the former.
    """
    texts = dict.fromkeys(
        text
        for text in _texts(row)
        if (len(text.split()) >= LEAST_WORDS or len(text) >= LEAST_LETTERS) and text in asked
    )
    return tuple(texts) or (asked,), max(texts, key=len, default="")


def _texts(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)


def check_options(options: Sequence[Json], where: str) -> list[str]:
    """The options as text. Raises DataError for fewer than two, and for an empty one."""
    if len(options) < 2:
        raise DataError(f"{where}: has {len(options)} options; a choice needs two or more")
    texts: list[str] = []
    for number, option in enumerate(options):
        if not isinstance(option, str):
            raise DataError(f"{where}: option {number} is {kind_of(option)}, not text")
        if not option.strip():
            raise DataError(f"{where}: option {number} is empty; give its text")
        texts.append(option)
    return texts


def rows_of(files: Files, reader: SourceReader) -> list[PosedRow]:
    """The rows of all files, in order. Raises DataError with file and row for one that is not an object of
    JSON.
    """
    return [
        _checked(where, row, reader) for path, digest in files for where, row in _read(path, digest, reader)
    ]


def _checked(where: str, row: Json, reader: SourceReader) -> PosedRow:
    problem = "" if isinstance(row, dict) else f"{kind_of(row)} where an object is expected"
    try:
        _check_depth(row, MOST_DEEP)
        json.dumps(row, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, TypeError, RecursionError) as error:
        problem = f"holds what is not JSON ({error})"
    if problem or not isinstance(row, dict):
        reader.broken(where, problem)
        raise DataError(f"{where}: {problem}")
    return PosedRow(where, row)


def _check_depth(value: Json, left: int) -> None:
    if not left:
        raise ValueError(f"nested deeper than {MOST_DEEP} levels")
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_depth(one, left - 1)


def _read(path: str, digest: str, reader: SourceReader) -> Iterator[tuple[str, Json]]:
    if path.endswith(".json"):
        raw = _text(reader.whole(path, digest), path)
        if raw.lstrip().startswith("["):
            yield from _of_list(raw, path)
            return
    if path.endswith(".csv"):
        yield from _of_csv(_text(reader.whole(path, digest), path), path)
        return
    for _, where, row in reader.rows(path, digest, ()):
        yield where, row


def _text(raw: bytes, path: str) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start} is not UTF-8; write it again") from None


def _of_list(text: str, path: str) -> Iterator[tuple[str, Json]]:
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON ({error}); fix it") from None
    for number, row in enumerate(rows, start=1):
        yield f"{path}: row {number}", row


def _of_csv(text: str, path: str) -> Iterator[tuple[str, Json]]:
    """Rows with a header. A column of whole numbers is numbers, as `datasets` reads it."""
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        names = reader.fieldnames or ()
        read = [(f"{path}:{reader.line_num}", row) for row in reader]
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: not CSV ({error}); fix it") from None
    if len(set(names)) < len(names):
        raise DataError(f"{path}:1: two columns have the same name; rename one")
    for where, row in read:
        if None in row or None in row.values():
            raise DataError(f"{where}: has not as many values as the header; fix it")
    whole = {name for name in names if all(_is_whole(row[name]) for _, row in read)}
    for where, row in read:
        yield where, {name: int(one) if name in whole else one for name, one in row.items()}


def _is_whole(text: str) -> bool:
    return text.isascii() and text.removeprefix("-").isdigit() and len(text) < 19
