"""Read a text source file by file, check each file against the planned content id, and cut it into
documents.
"""

import gzip
import hashlib
import io
import json
import tokenize
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from typing_extensions import Buffer

from atelier.engine.config.base import Json
from atelier.engine.config.data import Source, is_stdlib
from atelier.engine.config.error import DataError
from atelier.engine.data import standard_library
from atelier.engine.io.process import Progress
from atelier.engine.io.remote import open_system
from atelier.engine.io.source_files import (
    BLOCK,
    TEXT,
    TOPICS,
    content_id,
    reading,
    short_names,
    stdlib_folder,
)

Files = list[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class Document:
    """One text of a source. Documents of one `group` go into the same split; `kind` is for the summary."""

    id: str
    text: str
    group: str
    kind: str


class _Watched(io.RawIOBase):
    """A reader that hashes and counts the bytes read."""

    def __init__(self, inner: IO[bytes], path: str, progress: Progress) -> None:
        self._inner, self._path, self._progress = inner, path, progress
        self.digest = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        with reading(self._path, self._path):
            block = self._inner.read(len(view := memoryview(buffer)))
        self.digest.update(block)
        self._progress.advance(len(block))
        view[: len(block)] = block
        return len(block)


class SourceReader:
    """Reads files that must be unchanged since the run was planned; on a broken line stops, or skips it."""

    def __init__(self, *, on_error: str, place: str, progress: Progress) -> None:
        self._stop, self._place, self._progress = on_error == "stop", place, progress
        self.skipped = 0

    def broken(self, where: str, problem: str) -> None:
        """Raise DataError for a broken line, or count it."""
        if self._stop:
            raise DataError(
                f"{where}: {problem}; mend it, or leave such lines out with {self._place}.on_error=skip"
            )
        self.skipped += 1

    @contextmanager
    def opened(self, path: str, expected: str) -> Iterator[IO[bytes]]:
        """The (unpacked) bytes of `path`. Raises DataError when the file is gone or its content id is not
        `expected`.
        """
        changed = f"{path}: changed since the run was planned; run the same command again"
        try:
            found = content_id(path) if expected.startswith("remote:") else ""
            if found and found != expected:
                raise DataError(changed)
            system, place = open_system(path)
            with system.open(place, "rb") as inner:
                watched = _Watched(inner, path, self._progress)
                buffered = io.BufferedReader(watched, BLOCK)
                yield gzip.GzipFile(fileobj=buffered) if path.endswith(".gz") else buffered  # pyright: ignore
                while buffered.read(BLOCK):
                    pass
                found = found or watched.digest.hexdigest()
        except FileNotFoundError:
            raise DataError(f"{path}: gone since the run was planned; run the same command again") from None
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(f"{path}: not whole gzip data ({error})") from None
        if found != expected:
            raise DataError(changed)

    def whole(self, path: str, expected: str) -> bytes:
        """All bytes of `path`. Raises DataError as `opened`."""
        with self.opened(path, expected) as file:
            return file.read()

    def json_lines(self, path: str, expected: str) -> Iterator[tuple[int, dict[str, Json]]]:
        """(line number from 1, object) of a .jsonl file; blank lines are skipped."""
        with self.opened(path, expected) as file:
            for number, raw in enumerate(file, start=1):
                line = self._parsed(raw, f"{path}:{number}") if raw.strip() else None
                if line is not None:
                    yield number, line

    def _parsed(self, raw: bytes, where: str) -> dict[str, Json] | None:
        try:
            line = json.loads(raw)
        except UnicodeDecodeError as error:
            self.broken(where, f"byte {error.start} of the line is not UTF-8")
        except (ValueError, RecursionError) as error:
            self.broken(where, f"not JSON ({error})")
        else:
            if isinstance(line, dict):
                return line
            self.broken(where, f"{kind_of(line)} where an object is expected")
        return None


def total_bytes(files: Files) -> int:
    """Total size of the files, for progress only: a missing file counts 0 and is reported when it is read."""
    total = 0
    for path, _ in files:
        with reading(path, path):
            system, place = open_system(path)
            total += int(system.size(place) or 0) if system.exists(place) else 0
    return total


def documents(source: Source, files: Files, reader: SourceReader) -> Iterator[Document]:
    """Every document of the source, in the order of the files; empty ones are left out."""
    if is_stdlib(source.source):
        yield from _stdlib_documents(files, reader)
        if source.source == "stdlib":  # not when only some packages are wanted
            yield from _builtin_documents()
        return
    names = short_names(path for path, _ in files)
    for path, expected in files:
        if path.endswith(TEXT):
            yield from _text(path, names[path], expected, reader)
        else:
            yield from _lines(path, names[path], expected, source.field, reader)


def _text(path: str, name: str, expected: str, reader: SourceReader) -> Iterator[Document]:
    raw = reader.whole(path, expected)
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        reader.broken(path, f"byte {error.start} is not UTF-8")
        return
    if text.strip():
        yield Document(id=name, text=text, group=text_group(text), kind="text")


def _lines(path: str, name: str, expected: str, wanted: str, reader: SourceReader) -> Iterator[Document]:
    for number, line in reader.json_lines(path, expected):
        problem = text_problem(line, wanted)
        if problem:
            reader.broken(f"{path}:{number}", problem)
        elif (text := str(line[wanted])).strip():
            yield Document(id=f"{name}:{number}", text=text, group=text_group(text), kind="line")


def text_problem(line: dict[str, Json], wanted: str) -> str:
    """Why the field `wanted` of a line is not text; '' when it is."""
    there = ", ".join(sorted(line)) or "none"
    if wanted not in line:
        return f"field '{wanted}' is missing; fields there: {there}"
    text = line[wanted]
    if not isinstance(text, str):
        return f"field '{wanted}' is {kind_of(text)}, not text; fields there: {there}"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return (
            f"field '{wanted}' holds half of a surrogate pair at character {error.start}, which is not text"
        )
    return ""


def _stdlib_documents(files: Files, reader: SourceReader) -> Iterator[Document]:
    for path, expected in files:
        name = stdlib_name(path)
        text = decode_source(reader.whole(path, expected), path)
        if name == TOPICS:  # the file itself would hold every topic, also the held-out ones
            for topic, body in standard_library.topics(text):
                group = f"{name}:{topic}"
                yield Document(id=group, text=body, group=group, kind="topic")
        elif text.strip():
            yield Document(id=name, text=text, group=name, kind="source")


def _builtin_documents() -> Iterator[Document]:
    for module, body in standard_library.builtin_docs():
        yield Document(id=f"builtin:{module}", text=body, group=f"builtin:{module}", kind="builtin")


def stdlib_name(path: str) -> str:
    """The path inside the standard library, equal on every machine. Raises DataError for other files."""
    root = stdlib_folder()
    if not Path(path).is_relative_to(root):
        raise DataError(
            f"{path}: not below this interpreter's standard library {root};"
            " run the engine with the planner's interpreter"
        )
    return Path(path).relative_to(root).as_posix()


def decode_source(raw: bytes, path: str) -> str:
    """Decode Python source by its declared encoding. Raises DataError when that fails."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        return raw.decode(encoding).replace("\r\n", "\n")
    except (SyntaxError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not readable Python source ({error})") from None


def text_group(text: str) -> str:
    """The split group of a document without a file of its own: the hash of its text."""
    return hashlib.sha256(text.encode()).hexdigest()


def kind_of(value: Json) -> str:
    """The kind of a JSON value, in words for an error."""
    if isinstance(value, bool):
        return "true or false"
    kinds = {type(None): "null", int: "a number", float: "a number", str: "text", list: "a list"}
    return kinds.get(type(value), "an object")
