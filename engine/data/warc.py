"""Read the pages of WARC archives (ISO 28500:2017): records, HTTP responses, their codings.

Libraries pass over damaged records in silence (FastWARC 2.0.1: truncated ones, bytes between records).
"""

import io
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import IO, NamedTuple

from atelier.engine.config.error import DataError, printable
from atelier.engine.data.zst import Unpacked

MOST_PAGE = 1 << 25  # bytes of a page, also after unpacking
TOO_LARGE = f"is larger than {MOST_PAGE >> 20} MiB"
MOST_LINE, MOST_LINES = 1 << 16, 1000  # of a record's header
HTML, XHTML, PLAIN = "text/html", "application/xhtml+xml", "text/plain"
PAGES = (HTML, XHTML, PLAIN)
RECORDS = {"response", "resource", "conversion"}  # kinds that may hold a page; conversion: extracted text
SITES = ("http:", "https:", "ftp:", "file:")  # addresses of pages; others are the crawler's own
MOST_ADDRESS = 500  # characters of an address in a document's id
OK = 200
_MEDIA = re.compile(r"\s*([\w.+-]+/[\w.+-]+)")
_CHARSET = re.compile(r"charset\s*=\s*[\"']?\s*([^\s\"';,]{1,40})", re.IGNORECASE)
_STATUS = re.compile(rb"HTTP/\d(?:\.\d)?[ \t]+(\d{3})")
_END = re.compile(rb"\r?\n\r?\n")
_CHUNK = re.compile(rb"\s{0,4}([0-9a-fA-F]{1,8})[ \t]*(?:;[^\n]{0,999})?\r?\n")
_MARKUP = re.compile(rb"\s{0,999}<")
_BEGINS_HTML = re.compile(rb"\s{0,999}<(?:!doctype html|html)", re.IGNORECASE)
CODINGS = {"gzip", "x-gzip", "deflate", "br", "zstd"}
MAGIC = {"gzip": b"\x1f\x8b", "x-gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd"}  # first bytes
MOST_MEMBERS = 100  # of a gzip body; each copies the rest
Broken = Callable[[str, str], None]
Fields = dict[str, str]  # lower-case names; values of repeated ones are joined by commas


class Page(NamedTuple):
    """A page as it was served: the number of its record from 1 (0 = a file of its own), address, content,
    media type, charset.
    """

    number: int
    address: str
    body: bytes
    kind: str
    charset: str


class PageError(Exception):
    """Why a record has no page for a corpus."""


def pages_of(file: IO[bytes], path: str, notes: Counter[str], broken: Broken) -> Iterator[Page]:
    """The pages of an archive; memory holds one. `notes` counts other records; damaged pages go to `broken`
    (place, problem).

    Raises DataError naming `path` and the record if the archive is damaged or truncated.
    """
    number = 0
    while (fields := _header(file, f"{path}: record {number + 1}")) is not None:
        number += 1
        where = f"{path}: record {number}"
        block, length = _block(file, fields, where)
        kind, address = fields.get("warc-type", "").lower(), fields.get("warc-target-uri", "").strip("<>")
        if kind not in RECORDS or not address.lower().startswith(SITES):
            notes["revisits" if kind == "revisit" else "records about the crawl"] += 1
            continue
        try:
            page, said = _page(number, _shown(address), block, fields)
            if page is not None and length > MOST_PAGE:
                raise PageError(TOO_LARGE)
            if page is not None and "warc-segment-number" in fields:
                raise PageError("is a segment of a page; join the segments first")
        except PageError as problem:
            broken(where, str(problem))
            continue
        if page is not None and "warc-truncated" in fields:
            said.add("pages cut short by the crawler or the server")
        notes.update(said)
        if page is not None:
            yield page


def _header(file: IO[bytes], where: str) -> Fields | None:
    """The fields of the next record's header; None at the end of the archive."""
    version = b"\r\n"
    while version in (b"\r\n", b"\n"):  # some writers leave more of them than two
        version = file.readline(MOST_LINE)
    if not version:
        return None
    if not version.startswith(b"WARC/"):
        raise DataError(f"{where}: does not begin with WARC/; copy the archive again")
    lines: list[bytes] = []
    while (line := file.readline(MOST_LINE)).strip():
        lines.append(line)
        if len(line) == MOST_LINE or len(lines) > MOST_LINES:
            raise DataError(f"{where}: its header is too long; copy the archive again")
    if not line:
        raise DataError(f"{where}: the archive ends within a header; copy it again")
    return _fields(lines)


def _fields(lines: list[bytes]) -> Fields:
    """Fields of a header; lines that are none are passed over."""
    found: dict[str, list[list[str]]] = {}  # name -> values, each of one or several lines
    last: list[str] | None = None
    for line in lines:
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        name, colon, value = text.partition(":")
        if text[:1] in (" ", "\t") and last:
            last.append(text.strip())
        elif colon:
            last = [value.strip()]
            found.setdefault(name.strip().lower(), []).append(last)
    return {name: ", ".join(map(" ".join, values)) for name, values in found.items()}


def _block(file: IO[bytes], fields: Fields, where: str) -> tuple[bytes, int]:
    """The content of a record, at most MOST_PAGE bytes of it, and its length."""
    told = fields.get("content-length", "")
    if not re.fullmatch("[0-9]{1,18}", told):
        raise DataError(f"{where}: Content-Length is {printable(told, 40)!r}; copy the archive again")
    length = left = int(told)
    parts: list[bytes] = []
    while left:
        part = file.read(min(left, 1 << 20))
        if not part:
            raise DataError(f"{where}: the archive ends within the record; copy it again")
        if length - left < MOST_PAGE:
            parts.append(part)
        left -= len(part)
    if file.read(4) != b"\r\n\r\n":
        raise DataError(f"{where}: is longer or shorter than it says; copy the archive again")
    return b"".join(parts), length


def _page(number: int, address: str, block: bytes, fields: Fields) -> tuple[Page | None, set[str]]:
    """The page of a record, if it has one, and what is to be counted. Raises PageError."""
    if not block:
        return None, {"records without content"}
    said: set[str] = set()
    is_http = block.startswith(b"HTTP/") and fields.get("warc-type", "").lower() == "response"
    if not is_http and "application/http" in fields.get("content-type", ""):
        raise PageError("is not an HTTP response")
    body, answer = block, fields
    if is_http:
        status, end = _STATUS.match(block), _END.search(block)
        if status is None:
            raise PageError("is not an HTTP response")
        if int(status[1]) != OK:
            return None, {"responses of another status than 200"}
        head, body = (block[: end.start()], block[end.end() :]) if end else (block, b"")
        answer = _fields(head.splitlines()[1:])
    told = answer.get("content-type", "") or fields.get("warc-identified-payload-type", "")
    media, charset = _MEDIA.match(told), _CHARSET.search(told)
    kind = media[1].lower() if media else HTML if _BEGINS_HTML.match(body) else ""
    if kind not in PAGES:
        return None, {"records of other media types" if kind else "records without a media type"}
    if is_http:
        body, is_whole = _content(body, answer)
        if not is_whole:
            said.add("pages cut short by the crawler or the server")
    return Page(number, address, body, kind, charset[1] if charset else ""), said


def _content(body: bytes, fields: Fields) -> tuple[bytes, bool]:
    """The body without its codings, and whether it is whole. Raises PageError."""
    is_whole = True
    transfer, content = (
        [word.strip().lower() for word in fields.get(name, "").split(",")]
        for name in ("transfer-encoding", "content-encoding")
    )
    for coding in [*reversed(transfer), *reversed(content)]:
        part_is_whole = True
        if coding == "chunked":
            body, part_is_whole = _joined(body)
        elif coding in CODINGS and _is_packed(body, coding):
            body, part_is_whole = _unpacked(body, coding)
        is_whole = is_whole and part_is_whole
    return body, is_whole


def _is_packed(body: bytes, coding: str) -> bool:
    """Whether a body has a coding that its fields name: crawlers often unpack it and keep the field."""
    return body.startswith(MAGIC[coding]) if coding in MAGIC else bool(body) and not _MARKUP.match(body)


def _joined(body: bytes) -> tuple[bytes, bool]:
    """The chunks of a body, and whether its last one is there. A body that has none is joined already."""
    parts: list[bytes] = []
    place = 0
    while (found := _CHUNK.match(body, place)) is not None:
        size = int(found[1], 16)
        if not size:
            return b"".join(parts), True
        parts.append(body[found.end() : found.end() + size])
        place = found.end() + size
    return (b"".join(parts), False) if parts else (body, True)


def _unpacked(body: bytes, coding: str) -> tuple[bytes, bool]:
    """A body without one coding, and whether it is whole. Raises PageError."""
    try:
        if coding == "br":
            return _unpacked_brotli(body)
        if coding != "zstd":
            return _inflated(body, coding)
        result = io.BufferedReader(Unpacked(io.BytesIO(body), "its content")).read(MOST_PAGE + 1)
    except zlib.error as error:
        raise PageError(f"its content is not {coding} ({printable(error)})") from None
    except DataError as error:
        raise PageError(str(error).partition(";")[0]) from None
    if len(result) > MOST_PAGE:
        raise PageError(TOO_LARGE)
    return result, True


def _inflated(body: bytes, coding: str) -> tuple[bytes, bool]:
    parts, size, is_whole = list[bytes](), 0, True
    has_head = coding != "deflate" or (body[0] & 15 == 8 and int.from_bytes(body[:2], "big") % 31 == 0)
    while body:  # members of gzip
        if len(parts) == MOST_MEMBERS:
            raise PageError(f"its content has more than {MOST_MEMBERS} gzip members")
        unpacker = zlib.decompressobj(47 if has_head else -15)
        parts.append(unpacker.decompress(body, MOST_PAGE - size + 1))
        size += len(parts[-1])
        if size > MOST_PAGE:
            raise PageError(TOO_LARGE)
        is_whole = unpacker.eof
        body = unpacker.unused_data if unpacker.unused_data.startswith(MAGIC["gzip"]) else b""
    return b"".join(parts), is_whole


def _unpacked_brotli(body: bytes) -> tuple[bytes, bool]:
    import brotli  # resiliparse needs it too

    unpacker = brotli.Decompressor()
    try:
        result = unpacker.process(body, output_buffer_limit=MOST_PAGE + 1)
    except brotli.error as error:
        raise PageError(f"its content is not br ({printable(error)})") from None
    if len(result) > MOST_PAGE or not unpacker.can_accept_more_data():
        raise PageError(TOO_LARGE)
    return result, unpacker.is_finished()


def _shown(address: str) -> str:
    """An address without user and password."""
    return printable(re.sub(r"^(\w+:/*)[^/?#]*@", r"\1", address), MOST_ADDRESS)
