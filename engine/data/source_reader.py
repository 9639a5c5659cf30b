"""Read the files of a source, compressed or not, row by row, and check each file against the planned content
id.
"""

import gzip
import hashlib
import io
import json
import os
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import IO, Self, cast

from typing_extensions import Buffer

from atelier.engine.config.base import Json
from atelier.engine.config.error import DataError, printable
from atelier.engine.data import catalogue, tar
from atelier.engine.data.parquet import ParquetReader
from atelier.engine.data.row import Column, kind_of
from atelier.engine.data.web import Page, PageReader
from atelier.engine.data.zst import Unpacked
from atelier.engine.io.process import Progress
from atelier.engine.io.remote import open_system
from atelier.engine.io.source_files import BLOCK, CATALOGUE, PARQUET, TAR, check_package, content_id, reading
from atelier.engine.io.storage import is_local, local_path

MOST_TEXT = 1 << 30  # bytes per text after unpacking: a line or a file
# stores that can read exactly the requested ranges
BY_RANGES = ("hf://", "s3://", "s3a://", "http://", "https://", "gs://", "gcs://", "abfs://", "az://")
Row = tuple[int, str, dict[str, Json]]  # number from 1, place for errors, values


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
    """Reads files that must be unchanged since the run was planned. At a broken line it stops, or skips it.
    Its `with` ends what it started. `place`: the section with the key `on_error`, '' = none.
    """

    def __init__(self, *, on_error: str, place: str, progress: Progress) -> None:
        self._stop, self._place, self._progress = on_error == "stop", place, progress
        self._parquet, self._web = ParquetReader(), PageReader()
        self.skipped, self.first = 0, ""
        self.empty = 0  # documents without text

    def __enter__(self) -> Self:
        return self

    @property
    def notes(self) -> dict[str, int]:
        """Counts of what web files hold besides plain pages."""
        return {what: count for what, count in sorted(self._web.notes.items()) if count}

    def __exit__(self, *error: object) -> None:
        self._parquet.close()
        self._web.close()
        for what, count in self.notes.items():
            self._progress.warn(f"{what}: {count}")
        if self.first:
            self._progress.warn(f"{self.skipped} broken rows are left out, the first of them {self.first}")

    def broken(self, where: str, problem: str) -> None:
        """Raise DataError for a broken line, or count it for a warning at the end."""
        if self._stop:
            skip = f", or skip such lines with {self._place}.on_error=skip" if self._place else ""
            raise DataError(f"{where}: {problem}; fix it{skip}")
        self.skipped, self.first = self.skipped + 1, self.first or f"{where}: {problem}"

    @contextmanager
    def opened(self, path: str, expected: str) -> Iterator[IO[bytes]]:
        """The (unpacked) bytes of `path`. Raises DataError if the file is gone or its content id differs from
        `expected`.
        """
        check_package(path, path)
        with _named(path):
            found = content_id(path) if expected.startswith("remote:") else ""
            if found and found != expected:
                raise _changed(path)
            system, place = open_system(path)
            with system.open(place, "rb") as inner:
                watched = _Watched(inner, path, self._progress)
                buffered = io.BufferedReader(watched, BLOCK)
                yield _unpacked(cast(IO[bytes], buffered), path)
                while buffered.read(BLOCK):
                    pass
                found = content_id(path) if found else watched.digest.hexdigest()
        if found != expected:
            raise _changed(path)

    @contextmanager
    def seekable(self, path: str, expected: str) -> Iterator[IO[bytes]]:
        """The bytes of `path` in any order; of a remote file only the requested ones. Raises DataError as
        `opened`; a local file is read once more for that.
        """
        check_package(path, path)
        with _named(path):
            before = _stamp(path)
            if content_id(path) != expected:
                raise _changed(path)
            system, place = open_system(path)
            options = {"cache_type": "none"} if path.startswith(BY_RANGES) else {}
            with reading(path, path):
                inner = system.open(place, "rb", **options)
            with inner:
                watched = _Seekable(inner, path, self._progress)
                yield cast(IO[bytes], watched)
                watched.leave_out_the_rest()
            if _stamp(path) != before or (expected.startswith("remote:") and content_id(path) != expected):
                raise _changed(path)

    def whole(self, path: str, expected: str) -> bytes:
        """All bytes of `path`. Raises DataError as `opened`, and for more than `MOST_TEXT`."""
        with self.opened(path, expected) as file:
            found = file.read(MOST_TEXT + 1)
            if len(found) > MOST_TEXT:
                raise _too_long(path)
            return found

    def rows(self, path: str, expected: str, columns: Sequence[Column]) -> Iterator[Row]:
        """The rows of a file of rows, in order; memory holds a few. A sample's member .txt is the value of
        the first column's last name.
        """
        if path.endswith(PARQUET):
            with self.seekable(path, expected) as file:
                for number, values in self._parquet.rows(file, path, columns, self.broken):
                    yield number, f"{path}:{number}", values
        elif path.endswith(TAR):
            with self.opened(path, expected) as file:
                yield from self._of_samples(tar.samples(file, path, self.broken), path, columns[0].names[-1])
        elif path.endswith(CATALOGUE):
            with self.opened(path, expected) as file:
                raw = file.read(catalogue.MOST + 1)
            named = {catalogue.NAME: PurePosixPath(path).stem}
            for number, row in catalogue.messages(raw, path, self.broken):
                yield number, f"{path}: message {number}", {**row, **named}
        else:
            yield from self._of_lines(path, expected)

    def pages(self, path: str, expected: str) -> Iterator[tuple[Page, str]]:
        """The pages of a web file with their main text; memory holds one."""
        with self.opened(path, expected) as file:
            yield from self._web.texts(file, path, self.broken)

    def _of_lines(self, path: str, expected: str) -> Iterator[Row]:
        """The rows of a .jsonl file; blank lines are numbered and left out."""
        with self.opened(path, expected) as file:
            for number, raw in enumerate(iter(lambda: file.readline(MOST_TEXT + 1), b""), start=1):
                where = f"{path}:{number}"
                if len(raw) > MOST_TEXT:
                    raise _too_long(where)
                row = None if _is_blank(raw) else self._parsed(raw, where)
                if row is not None:
                    yield number, where, row

    def _of_samples(self, samples: Iterator[tar.Sample], path: str, text_name: str) -> Iterator[Row]:
        """One row per sample, or one per line of its .jsonl."""
        number = 0
        for sample in samples:
            where = f"{path}: {printable(sample.key)}"
            texts = sample.texts
            if tar.LINES in texts and tar.TEXT not in texts and tar.OBJECT not in texts:
                for line, raw in enumerate(texts[tar.LINES].splitlines(), start=1):
                    number += 1
                    there = f"{where}.{tar.LINES}:{line}"
                    if not _is_blank(raw) and (row := self._parsed(raw, there)) is not None:
                        yield number, there, row
                continue
            number += 1
            if not texts:
                members = printable(", ".join(sample.others))
                self.broken(where, f"has no member .txt, .json or .jsonl; members there: {members}")
                continue
            row = self._parsed(texts[tar.OBJECT], f"{where}.{tar.OBJECT}") if tar.OBJECT in texts else {}
            if row is not None and tar.TEXT in texts:
                text = self._decoded(texts[tar.TEXT], f"{where}.{tar.TEXT}")
                row = None if text is None else row | {text_name: text}
            if row is not None:
                yield number, where, row

    def _decoded(self, raw: bytes, where: str) -> str | None:
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            self.broken(where, f"byte {error.start} is not UTF-8")
            return None

    def _parsed(self, raw: bytes, where: str) -> dict[str, Json] | None:
        try:
            line = json.loads(raw.decode("utf-8-sig"))  # json.loads(bytes) would also detect UTF-16
        except UnicodeDecodeError as error:
            self.broken(where, f"byte {error.start} of the line is not UTF-8")
        except (ValueError, RecursionError) as error:
            self.broken(where, f"not JSON ({error})")
        else:
            if isinstance(line, dict):
                return line
            self.broken(where, f"{kind_of(line)} where an object is expected")
        return None


def _is_blank(line: bytes) -> bool:
    """Whether a line is empty except for a byte order mark."""
    return not line.removeprefix(BOM_UTF8).strip()


class _Seekable(io.RawIOBase):
    """A file that is read in parts, with a count of the bytes."""

    def __init__(self, inner: IO[bytes], path: str, progress: Progress) -> None:
        self._inner, self._path, self._progress = inner, path, progress
        self._count = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        with reading(self._path, self._path):
            return self._inner.seek(offset, whence)

    def tell(self) -> int:
        return self._inner.tell()

    def readinto(self, buffer: Buffer) -> int:
        with reading(self._path, self._path):
            block = self._inner.read(len(view := memoryview(buffer)))
        self._count += len(block)
        self._progress.advance(len(block))
        view[: len(block)] = block
        return len(block)

    def leave_out_the_rest(self) -> None:
        """Count unread bytes too: the file is done."""
        self._progress.advance(max(0, self.seek(0, io.SEEK_END) - self._count))


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Convert errors of reading `path` to DataErrors that name it."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{path}: gone since the run was planned; run the same command again") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: not complete gzip data ({error})") from None


def _unpacked(file: IO[bytes], path: str) -> IO[bytes]:
    if path.endswith(".gz"):
        return cast(IO[bytes], gzip.GzipFile(fileobj=file))
    return io.BufferedReader(Unpacked(file, path), BLOCK) if path.endswith(".zst") else file


def _stamp(path: str) -> tuple[int, ...]:
    """Numbers that change if a local file does; none for other files."""
    if not is_local(path):
        return ()
    stat = os.stat(local_path(path))
    return stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def _changed(path: str) -> DataError:
    return DataError(f"{path}: changed since the run was planned; run the same command again")


def _too_long(where: str) -> DataError:
    return DataError(f"{where}: more than {MOST_TEXT >> 20} MiB in one text; cut it into several")
