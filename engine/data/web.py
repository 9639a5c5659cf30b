"""Read web pages: .html files, and the pages of WARC archives (ISO 28500:2017).

Archives are read here, since libraries pass over damaged records in silence (FastWARC 2.0.1: truncated ones
and bytes between records). HTML is handled in a separate process (engine/io/limited_process.py), since
libraries take quadratic time for some pages: 100,000 nested elements, a page of 1 MB, take minutes.
"""

import http.client
import io
import re
import zlib
from base64 import b64decode, b64encode
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from email.message import Message
from socket import socket
from typing import IO, NamedTuple, cast

from atelier.engine.config.base import Json
from atelier.engine.config.error import DataError, printable
from atelier.engine.io.limited_process import LimitedProcess, LimitError, Limits, answer_all
from atelier.engine.io.source_files import ARCHIVES

MEMORY, CPU_S = 1 << 30, 10.0  # of the process: bytes of address space, processor seconds per page
MOST_PAGE = 1 << 25  # bytes of a page after unpacking
TOO_LARGE = f"is larger than {MOST_PAGE >> 20} MiB"
MOST_LINE, MOST_FIELDS = 1 << 16, 100  # of a record's header
HTML = ("text/html", "application/xhtml+xml")
PLAIN = "text/plain"
RECORDS = {"response", "resource", "conversion"}  # kinds that may hold a page; conversion: extracted text
MOST_ADDRESS = 500  # characters of an address in a document's id
_META = re.compile(rb"<meta[^>]{0,300}?charset\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE)
MOST_HEAD = 1024  # bytes in which a page names its encoding (HTML standard, 13.2.3.2)
BOMS = {BOM_UTF8: "utf-8", BOM_UTF16_LE: "utf-16-le", BOM_UTF16_BE: "utf-16-be"}
Broken = Callable[[str, str], None]


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


class PageReader:
    """Extracts the text of pages. `notes` counts records without a page, guessed encodings, and so on."""

    def __init__(self) -> None:
        self._process = LimitedProcess(__name__, Limits(MEMORY, CPU_S))
        self.notes: Counter[str] = Counter()

    def close(self) -> None:
        """End the process."""
        self._process.close()

    def texts(self, file: IO[bytes], path: str, broken: Broken) -> Iterator[tuple[Page, str]]:
        """The pages of an .html file or a WARC archive with their main text. Those that cannot be handled go
        to `broken` (place, problem).

        Raises DataError naming `path` and the record if an archive is damaged or truncated.
        """
        if path.endswith(ARCHIVES):
            for page in archived(file, path, self.notes, broken):
                text = self._text_of(page, f"{path}: record {page.number}", broken)
                if text is not None:
                    yield page, text
            return
        body = file.read(MOST_PAGE + 1)
        page = Page(0, "", body, HTML[0], "")
        if len(body) > MOST_PAGE:
            broken(path, TOO_LARGE)
        elif (text := self._text_of(page, path, broken)) is not None:
            yield page, text

    def _text_of(self, page: Page, where: str, broken: Broken) -> str | None:
        if page.kind == PLAIN:
            try:
                return page.body.decode(page.charset or "utf-8")
            except (LookupError, UnicodeDecodeError):
                return broken(where, f"is not {printable(page.charset or 'UTF-8', 40)} text")
        try:
            answer = self._process.ask({"page": b64encode(page.body).decode(), "charset": page.charset})
        except LimitError as error:
            return broken(where, f"its text cannot be extracted: the page {error}")
        except DataError as error:
            return broken(where, f"its text cannot be extracted: {error}")
        assert isinstance(answer, dict)
        self.notes["pages of a guessed encoding"] += bool(answer["detected"])
        self.notes["pages with undecodable bytes"] += bool(answer["replaced"])
        return str(answer["text"])


def archived(file: IO[bytes], path: str, notes: Counter[str], broken: Broken) -> Iterator[Page]:
    """The pages of a WARC archive; memory holds one. `notes` counts other records; damaged pages go to
    `broken` (place, problem).

    Raises DataError naming `path` and the record if the archive is damaged or truncated.
    """
    number = 0
    while (header := _header(file, f"{path}: record {number + 1}")) is not None:
        number += 1
        where = f"{path}: record {number}"
        body = _block(file, header, where)
        if header.get("WARC-Type", "").strip().lower() not in RECORDS:
            notes["records without a page"] += 1
            continue
        try:
            page, status = _page(number, body, header)
        except PageError as problem:
            broken(where, str(problem))
            continue
        notes["pages truncated by the crawler"] += "WARC-Truncated" in header
        if status != http.client.OK:
            notes["responses of another status than 200"] += 1
        elif page.kind not in (*HTML, PLAIN):
            notes["records of other media types"] += 1
        else:
            yield page


def _header(file: IO[bytes], where: str) -> Message | None:
    """The fields of the next record's header; None at the end of the archive."""
    version = b"\r\n"
    while version in (b"\r\n", b"\n"):  # some writers leave more of them than two
        version = file.readline(MOST_LINE)
    if not version:
        return None
    if not version.startswith(b"WARC/"):
        raise DataError(f"{where}: does not begin with WARC/; copy the archive again")
    lines = [b"\n"]
    while (line := file.readline(MOST_LINE)).strip():
        lines.insert(-1, line)
        if len(line) == MOST_LINE or len(lines) > MOST_FIELDS:
            raise DataError(f"{where}: its header is too long; copy the archive again")
    if not line:
        raise DataError(f"{where}: the archive ends within a header; copy it again")
    return http.client.parse_headers(io.BytesIO(b"".join(lines)))


def _block(file: IO[bytes], header: Message, where: str) -> bytes | None:
    """The content of a record; None if it is longer than a page may be."""
    told = header.get("Content-Length", "").strip()
    if not (told.isascii() and told.isdigit()):
        raise DataError(f"{where}: has no length (Content-Length); copy the archive again")
    length = left = int(told)
    parts: list[bytes] = []
    while left:
        part = file.read(min(left, 1 << 20))
        if not part:
            raise DataError(f"{where}: the archive ends within the record; copy it again")
        left -= len(part)
        if length <= MOST_PAGE:
            parts.append(part)
    if file.read(4) != b"\r\n\r\n":
        raise DataError(f"{where}: is longer or shorter than it says; copy the archive again")
    return b"".join(parts) if length <= MOST_PAGE else None


def _page(number: int, body: bytes | None, header: Message) -> tuple[Page, int]:
    """The page of a record, and its HTTP status. Raises PageError."""
    if body is None:
        raise PageError(TOO_LARGE)
    if "WARC-Segment-Number" in header:
        raise PageError("is a segment of a page; join the segments first")
    kind, charset = _media(header)
    page = Page(number, _address(header), body, kind, charset)
    if kind != "application/http":
        return page, http.client.OK
    response = http.client.HTTPResponse(cast(socket, _Socket(body)), method="GET")
    try:
        response.begin()
    except (http.client.HTTPException, OSError, ValueError) as error:
        raise PageError(f"is not an HTTP response ({type(error).__name__})") from None
    kind, charset = _media(response.msg)
    page = page._replace(kind=kind, charset=charset)
    if response.status == http.client.OK and kind in (*HTML, PLAIN):
        page = page._replace(body=_content(response, body[response.fp.tell() :]))
    return page, response.status


def _content(response: http.client.HTTPResponse, body: bytes) -> bytes:
    """The body without Transfer-Encoding and Content-Encoding. Raises PageError."""
    if response.chunked:
        with suppress(http.client.HTTPException, ValueError):
            body = response.read()  # else joined already: crawlers often leave the field as it was
    try:
        return _unpacked(body, str(response.msg.get("Content-Encoding", "")).strip().lower())
    except (zlib.error, ValueError) as error:
        raise PageError(f"its content cannot be unpacked ({printable(error)})") from None


def _unpacked(body: bytes, packing: str) -> bytes:
    """A body without its Content-Encoding. Raises ValueError for an unknown one and a page that is too
    large.
    """
    if packing in ("", "identity"):
        return body
    if packing not in ("gzip", "x-gzip", "deflate"):
        raise ValueError(f"Content-Encoding {packing}")
    if packing != "deflate" and not body.startswith(b"\x1f\x8b"):
        return body  # unpacked by the crawler
    has_head = packing != "deflate" or body[:1] == b"x"  # some servers send deflate without zlib's head
    unpacker = zlib.decompressobj(47 if has_head else -15)
    result = unpacker.decompress(body, MOST_PAGE)
    if not unpacker.eof:
        raise ValueError(TOO_LARGE if unpacker.unconsumed_tail else "it ends early")
    return result


class _Socket:
    """A response that HTTPResponse reads."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def makefile(self, mode: str) -> IO[bytes]:
        return io.BytesIO(self._content)


def _media(header: Message) -> tuple[str, str]:
    """Media type and charset of a header's Content-Type."""
    kind, _, rest = str(header.get("Content-Type", "")).partition(";")
    _, _, charset = rest.lower().partition("charset=")
    return kind.strip().lower(), charset.split(";")[0].strip(" \t\"'")[:40]


def _address(header: Message) -> str:
    """The address of a record, without the brackets of older archives."""
    raw = str(header.get("WARC-Target-URI", "")).strip().strip("<>").encode("latin-1", "replace")
    return printable(raw.decode(errors="replace"), MOST_ADDRESS)


def serve(channel: socket, limits: Limits) -> None:
    """In the process: answer {page: base64, charset} with {text, detected, replaced}: whether its encoding
    was guessed, and whether bytes could not be decoded.
    """
    answer_all(channel, limits, _extracted)


def _extracted(request: Json) -> Json:
    from resiliparse.extract.html2text import extract_plain_text

    assert isinstance(request, dict)
    raw = b64decode(str(request["page"]))
    encoding, is_detected = _encoding(raw, str(request["charset"]))
    try:
        html, has_replaced = raw.decode(encoding), False
    except UnicodeDecodeError:
        html, has_replaced = raw.decode(encoding, "replace"), True
    text = extract_plain_text(html.removeprefix("\ufeff"), preserve_formatting=True, main_content=True)
    return {"text": text, "detected": is_detected, "replaced": has_replaced}


def _encoding(raw: bytes, charset: str) -> tuple[str, bool]:
    """A page's encoding and whether it was detected: byte order mark, `charset` of the server, the page's own
    word, UTF-8 if it is valid, else a guess from the bytes.
    """
    from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5

    for mark, name in BOMS.items():
        if raw.startswith(mark):
            return name, False
    own = _META.search(raw, 0, MOST_HEAD)
    for word in (charset, own[1].decode("ascii", "ignore") if own else ""):
        known = map_encoding_to_html5(word, fallback_utf8=False) if word else None
        if known and not (known.startswith("utf-16") and word != charset):  # such a word was read as ASCII
            return known, False
    try:
        raw.decode()
        return "utf-8", False
    except UnicodeDecodeError:
        return detect_encoding(raw, html5_compatible=True) or "utf-8", True
