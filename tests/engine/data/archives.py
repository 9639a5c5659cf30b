"""WARC archives for tests."""

import gzip

RESPONSE = "application/http; msgtype=response"


def record(body: bytes, kind: str = "response", media: str = RESPONSE, *more: str) -> bytes:
    """A record; `more`: further lines of its header."""
    address = "WARC-Target-URI: http://a.example/\u00fc"
    lines = ["WARC/1.0", f"WARC-Type: {kind}", address, f"Content-Type: {media}", *more]
    head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""])
    return head.encode() + body + b"\r\n\r\n"


def served(body: bytes, *fields: str, status: str = "200 OK", media: str = "text/html") -> bytes:
    """An HTTP response."""
    head = "\r\n".join([f"HTTP/1.1 {status}", f"Content-Type: {media}", *fields, "", ""])
    return head.encode() + body


def page(text: str, encoding: str = "utf-8") -> bytes:
    return f"<html><body><nav>Home</nav><main><p>{text}</p></main></body></html>".encode(encoding)


def in_chunks(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (*parts, b""))


PAGES = {  # text -> response
    "plain": served(page("plain")),
    "in chunks": served(
        in_chunks(page("in chunks")[:30], page("in chunks")[30:]), "Transfer-Encoding: chunked"
    ),
    "joined": served(page("joined"), "Transfer-Encoding: chunked"),
    "packed": served(gzip.compress(page("packed"), mtime=0), "Content-Encoding: gzip"),
    "unpacked": served(page("unpacked"), "Content-Encoding: gzip"),
    "caf\u00e9 1": served(page("caf\u00e9 1", "cp1252"), media="text/html; charset=ISO-8859-1"),
    "caf\u00e9 2": served(b'<meta charset="iso-8859-1">' + page("caf\u00e9 2", "cp1252")),
    "\u4f60\u597d" * 20: served(page("\u4f60\u597d" * 20, "gb18030")),
    "not HTML": served(b"not HTML", media="text/plain"),
}
OTHERS = [
    record(b"software: a crawler\r\n", "warcinfo", "application/warc-fields"),
    record(b"GET / HTTP/1.1\r\n\r\n", "request"),
    record(served(b"gone", status="404 Not Found")),
    record(served(b"\x89PNG", media="image/png")),
]
RECORDS = [
    *OTHERS,
    *map(record, PAGES.values()),
    record(b"extracted before", "conversion", "text/plain"),
    record(page("by itself"), "resource", "text/html"),
]
TEXTS = [*PAGES, "extracted before", "by itself"]
