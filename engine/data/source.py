"""Read the documents of a text source, file by file."""

import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from atelier.engine.config.data import Source, is_stdlib, stdlib_part
from atelier.engine.config.error import DataError
from atelier.engine.config.generated import generated, is_generated
from atelier.engine.data import languages, standard_library
from atelier.engine.data.copies import text_group, without_bom
from atelier.engine.data.row import Column, text_problem
from atelier.engine.data.source_reader import SourceReader
from atelier.engine.io.source_files import (
    LINES,
    PARQUET,
    TAR,
    TEXT,
    TOPICS,
    WEB,
    short_names,
    stdlib_folder,
)

Files = list[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class Document:
    """One text of a source. Documents of one `group` share a split, documents of one `key` are copies; `kind`
    is for the summary.
    """

    id: str
    text: str
    group: str
    key: str
    kind: str


def documents(
    source: Source, files: Files, reader: SourceReader, within: slice = slice(None)
) -> Iterator[Document]:
    """Every document of the source's files `within`, in file order, without empty ones."""
    if is_stdlib(source.source):
        part, is_whole = stdlib_part(source.source), ":" not in source.source
        yield from _stdlib_documents(files[within], reader, part)
        is_last = files[within][-1:] == files[-1:]
        if is_whole and part != "code" and is_last:  # not if only some packages are wanted
            yield from _builtin_documents()
        return
    if is_generated(source.source):
        asked = generated(source.source, 1)
        for number, text in enumerate(languages.documents(asked) if not within.start else (), start=1):
            yield from _document(f"{asked.title}:{number}", text, "generated")
        return
    names = short_names(path for path, _ in files)
    for path, expected in files[within]:
        if path.endswith(TEXT):
            yield from _text(path, names[path], expected, reader)
        elif path.endswith(WEB):
            yield from _pages(path, names[path], expected, reader)
        else:
            yield from _lines(path, _as_lines(names[path]), expected, source.field, reader)


def _text(path: str, name: str, expected: str, reader: SourceReader) -> Iterator[Document]:
    raw = reader.whole(path, expected)
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        reader.broken(path, f"byte {error.start} is not UTF-8")
        return
    yield from _counted(_document(name, text, "text"), reader)


def _lines(path: str, name: str, expected: str, wanted: str, reader: SourceReader) -> Iterator[Document]:
    for number, where, row in reader.rows(path, expected, [Column(names=(wanted,))]):
        problem = text_problem(row, wanted)
        if problem:
            reader.broken(where, problem)
        else:
            yield from _counted(_document(f"{name}:{number}", str(row[wanted]), "line"), reader)


def _pages(path: str, name: str, expected: str, reader: SourceReader) -> Iterator[Document]:
    """Pages; in an archive `<file>:<number of the record>:<address>`."""
    for page, text in reader.pages(path, expected):
        own = ":".join([name, str(page.number), page.address]) if page.number else name
        yield from _counted(_document(own, text, "page"), reader)


def _counted(found: Iterator[Document], reader: SourceReader) -> Iterator[Document]:
    """The document; an empty one is counted."""
    document = next(found, None)
    if document is None:
        reader.empty += 1
    else:
        yield document


def _document(name: str, text: str, kind: str, group: str = "") -> Iterator[Document]:
    """The document with this text; none if it is empty. Without `group`, copies form one."""
    text = without_bom(text)
    if text.strip():
        key = text_group(text)
        yield Document(id=name, text=text, group=group or key, key=key, kind=kind)


def _as_lines(name: str) -> str:
    """The name of the .jsonl file with the same rows, so that packing does not change document ids (.jsonl.gz
    keeps its own).
    """
    ending = next((each for each in (*PARQUET, *TAR, LINES[-1]) if name.endswith(each)), "")
    return name.removesuffix(ending) + LINES[0] if ending else name


def _stdlib_documents(files: Files, reader: SourceReader, part: str) -> Iterator[Document]:
    for path, expected in files:
        name = stdlib_name(path)
        text = decode_source(reader.whole(path, expected), path)
        if name == TOPICS and part == "code":
            continue
        if part and name != TOPICS:
            text = (
                standard_library.prose(text, path) if part == "prose" else standard_library.code(text, path)
            )
        if name == TOPICS:  # the file itself contains every topic, held-out ones included
            for topic, body in standard_library.topics(text):
                group = f"{name}:{topic}"
                yield from _document(group, body, "topic", group)
        else:
            yield from _document(name, text, "source", name)


def _builtin_documents() -> Iterator[Document]:
    for module, body in standard_library.builtin_docs():
        yield from _document(f"builtin:{module}", body, "builtin", f"builtin:{module}")


def docstrings(files: Files, reader: SourceReader) -> Iterator[tuple[str, standard_library.Docstring]]:
    """The docstrings of standard library files, each with its file's name there."""
    for path, expected in files:
        name = stdlib_name(path)
        source = decode_source(reader.whole(path, expected), path)
        for found in standard_library.docstrings(source, path) if name != TOPICS else ():
            yield name, found


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
    """Decode Python source by its declared encoding. Raises DataError if that fails."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        return raw.decode(encoding).replace("\r\n", "\n")
    except (SyntaxError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not readable Python source ({error})") from None
