"""Read samples of tar shards in webdataset's layout, in one pass: consecutive members `<key>.<ending>` form a
sample. Nothing is extracted.
"""

import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import IO, Any, cast

from atelier.engine.config.error import DataError, printable

TEXT, OBJECT, LINES = "txt", "json", "jsonl"
MOST_MEMBER = 1 << 30  # bytes per text member
MOST_HEADER = 1 << 20  # bytes per name or other header of a member
HEADERS = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME)
NULL = b"\0"


@dataclass(kw_only=True)
class Sample:
    """`texts`: ending -> content of text members; `others`: endings of other members."""

    key: str
    texts: dict[str, bytes] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)


class _Member(tarfile.TarInfo):
    """A header whose damage is an error; `tarfile` would take it for the end of the archive."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Member":
        if len(buf) < tarfile.BLOCKSIZE:
            raise tarfile.ReadError("it ends without an end mark")
        try:
            found = super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if not buf.strip(NULL):
                raise  # the end mark
            raise tarfile.ReadError(f"a header is damaged: {error}") from None
        if found.type in (*HEADERS, tarfile.GNUTYPE_LONGLINK) and found.size > MOST_HEADER:
            raise tarfile.ReadError(f"a header has {found.size} bytes; at most {MOST_HEADER} are allowed")
        return found


def samples(file: IO[bytes], path: str, broken: Callable[[str, str], None]) -> Iterator[Sample]:
    """The samples of the archive `file`; memory holds one. Members that are not plain files, or whose names
    lead elsewhere, go to `broken` (place, problem).

    Raises DataError naming `path` if the archive is damaged, truncated, or followed by more data.
    """
    sample = Sample(key="")
    try:
        with tarfile.open(fileobj=file, mode="r|", tarinfo=_Member) as archive:
            while (member := _next(archive)) is not None:
                cast(Any, archive).members.clear()  # otherwise it keeps all of them; not in its types
                key, ending = _split(member.name)
                where = f"{path}: {printable(member.name)}"
                if problem := _problem(member):
                    broken(where, problem)
                if problem or not member.isreg() or not ending:
                    continue
                if key != sample.key:
                    yield from _not_empty(sample)
                    sample = Sample(key=key)
                if ending not in (TEXT, OBJECT, LINES):
                    sample.others.append(ending)
                elif ending in sample.texts:
                    broken(where, "occurs twice")
                elif (content := archive.extractfile(member)) is not None:
                    sample.texts[ending] = content.read()
            yield from _not_empty(sample)
            _check_end(archive, path)
    except tarfile.TarError as error:
        raise DataError(f"{path}: not a complete tar archive: {error}; copy or pack it again") from None


def _next(archive: tarfile.TarFile) -> tarfile.TarInfo | None:
    """The next member. Raises TarError for headers that would make it fail otherwise."""
    try:
        return archive.next()
    except (ValueError, IndexError, KeyError) as error:
        raise tarfile.HeaderError(f"a header with {error}") from None


def _not_empty(sample: Sample) -> Iterator[Sample]:
    if sample.key:
        yield sample


def _split(name: str) -> tuple[str, str]:
    """Key and ending: the name up to the first dot of its last part, and the rest; "" and "" if either is
    missing.
    """
    folder, _, last = name.rpartition("/")
    stem, _, ending = last.partition(".")
    return (f"{folder}/{stem}".lstrip("/"), ending.lower()) if stem and ending else ("", "")


def _problem(member: tarfile.TarInfo) -> str:
    """The reason why a member is not read; "" for files and folders that can be."""
    if ".." in PurePosixPath(member.name).parts or member.name.startswith("/"):
        return "has a name that leads out of the archive"
    if member.isdir():
        return ""
    if member.issym() or member.islnk():
        return f"is a link to {printable(member.linkname)}; links are not followed"
    if not member.isreg() or member.issparse():
        return "is not a plain file"
    if member.size > MOST_MEMBER and _split(member.name)[1] in (TEXT, OBJECT, LINES):
        return f"has {member.size} bytes; at most {MOST_MEMBER} are allowed per text"
    return ""


def _check_end(archive: tarfile.TarFile, path: str) -> None:
    """Raise DataError if data follows the end: another archive would be ignored silently."""
    rest = archive.fileobj
    while rest is not None and (block := rest.read(1 << 16)):
        if block.strip(NULL):
            raise DataError(f"{path}: more data follows the end of its archive; pack it as one archive")
