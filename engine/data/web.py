"""Read web pages: .html files, and the pages of WARC archives, as their main text.

HTML is handled in a separate process (engine/io/limited_process.py): libraries take quadratic time for some
pages. 100,000 nested elements, a page of 1 MB, take minutes.
"""

import re
from base64 import b64decode, b64encode
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections import Counter
from collections.abc import Iterator
from socket import socket
from typing import IO

from atelier.engine.config.base import Json
from atelier.engine.config.error import DataError
from atelier.engine.data.warc import HTML, MOST_PAGE, PLAIN, TOO_LARGE, XHTML, Broken, Page, pages_of
from atelier.engine.io.limited_process import LimitedProcess, LimitError, Limits, answer_all
from atelier.engine.io.source_files import ARCHIVES, PACKING

MEMORY, CPU_S = 1 << 30, 10.0  # of the process: bytes of address space, processor seconds per page
MOST_DEPTH = 4000  # nested elements; a limit of time alone would depend on the machine
MOST_HEAD = 1024  # bytes in which a page names its encoding (HTML standard, 13.2.3.2)
BOMS = {BOM_UTF8: "utf-8", BOM_UTF16_LE: "utf-16-le", BOM_UTF16_BE: "utf-16-be"}
UNMARKED = {b"<\0": "utf-16-le", b"\0<": "utf-16-be"}  # first bytes of a page without a byte order mark
WIDER = {  # the encodings that web pages mean by a name; Python's codecs of these names have fewer characters
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "euc-kr": "cp949",
    "big5": "big5hkscs",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "iso8859-11": "cp874",
    "iso8859_11": "cp874",
}
_META = re.compile(rb"<meta[^>]{0,300}?charset\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE)
_XML = re.compile(rb"\s{0,99}<\?xml[^>]{0,300}?encoding\s*=\s*[\"']([\w.:-]{1,40})")
_COMMENT = re.compile(rb"<!--.*?(?:-->|$)", re.DOTALL)
_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]*)")
_EMPTY = re.compile(r"<([a-zA-Z][\w:.-]*)((?:\s[^<>]*)?)/>")
_FLAT = """area base br col embed hr img input link meta source track wbr param
p li dt dd tr td th thead tbody tfoot option optgroup"""
FLAT = frozenset(_FLAT.split())  # elements without content, or whose end is often left out


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
            for page in pages_of(file, path, self.notes, broken):
                yield from self._text_of(page, f"{path}: record {page.number}", broken)
            return
        body = file.read(MOST_PAGE + 1)
        is_xhtml = path.endswith(tuple(f".xhtml{packed}" for packed in PACKING))
        if len(body) > MOST_PAGE:
            broken(path, TOO_LARGE)
        else:
            yield from self._text_of(Page(0, "", body, XHTML if is_xhtml else HTML, ""), path, broken)

    def _text_of(self, page: Page, where: str, broken: Broken) -> Iterator[tuple[Page, str]]:
        request: Json = {"page": b64encode(page.body).decode(), "kind": page.kind, "charset": page.charset}
        try:
            answer = self._process.ask(request)
        except LimitError as error:
            broken(where, f"its text cannot be extracted: the page {error}")
            return
        except DataError as error:
            broken(where, f"its text cannot be extracted: {error}")
            return
        assert isinstance(answer, dict)
        text = str(answer["text"])
        self.notes["pages of a guessed encoding"] += bool(answer["guessed"])
        self.notes["pages with undecodable bytes"] += bool(answer["replaced"])
        self.notes["pages without text"] += not text.strip()
        yield page, text


def serve(channel: socket, limits: Limits) -> None:
    """In the process: answer {page: base64, kind, charset} with {text, guessed, replaced}: whether its
    encoding was guessed, and whether bytes could not be decoded.
    """
    answer_all(channel, limits, _extracted)


def _extracted(request: Json) -> Json:
    from resiliparse.extract.html2text import extract_plain_text

    assert isinstance(request, dict)
    raw = b64decode(str(request["page"]))
    encoding, is_guessed = _encoding(raw, str(request["charset"]))
    try:
        text, has_replaced = raw.decode(encoding), False
    except UnicodeDecodeError:
        text, has_replaced = raw.decode(encoding, "replace"), True
    text = text.removeprefix("\ufeff")
    if request["kind"] != PLAIN:
        if request["kind"] == XHTML:
            text = _EMPTY.sub(r"<\1\2></\1>", text).replace("<![CDATA[", "").replace("]]>", "")
        if _depth(text) > MOST_DEPTH:
            raise DataError(f"its elements are nested more than {MOST_DEPTH} deep")
        text = extract_plain_text(text, preserve_formatting=True, main_content=True)
    return {"text": text, "guessed": is_guessed, "replaced": has_replaced}


def _depth(html: str) -> int:
    """About the depth to which elements are nested."""
    most = depth = 0
    if html.count("<") <= MOST_DEPTH:
        return 0
    for found in _TAG.finditer(html):
        if found[2].lower() not in FLAT:
            depth = max(0, depth - 1) if found[1] else depth + 1
            most = max(most, depth)
    return most


def _encoding(raw: bytes, charset: str) -> tuple[str, bool]:
    """A page's encoding and whether it was guessed: byte order mark, `charset` of the server, the page's own
    word, UTF-8 if it is valid, else a guess from the bytes.
    """
    from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5

    for mark, name in BOMS.items():
        if raw.startswith(mark):
            return name, False
    if raw[:2] in UNMARKED:
        return UNMARKED[raw[:2]], True
    head = _COMMENT.sub(b"", raw[:MOST_HEAD])
    own = _XML.match(head) or _META.search(head)
    for word in (charset, own[1].decode("ascii", "ignore") if own else ""):
        known = map_encoding_to_html5(word.lower(), fallback_utf8=False) if word.isprintable() else None
        if known and not (known.startswith("utf-16") and word != charset):  # such a word was read as ASCII
            return WIDER.get(known.lower(), known), False
    if b"\0" not in raw and b"\x1b" not in raw:
        try:
            raw.decode()
            return "utf-8", False
        except UnicodeDecodeError:
            pass
    found = detect_encoding(raw, html5_compatible=True) or "utf-8"
    return WIDER.get(found.lower(), found), True
