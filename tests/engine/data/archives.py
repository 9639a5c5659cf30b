"""WARC archives for tests."""

import gzip
import zlib

import brotli
import zstandard

RESPONSE = "application/http; msgtype=response"


ADDRESS = "http://a.example/\u00fc"


def record(
    body: bytes, kind: str = "response", media: str = RESPONSE, *more: str, address: str = ADDRESS
) -> bytes:
    """A record; `more`: further lines of its header."""
    lines = ["WARC/1.0", f"WARC-Type: {kind}", f"WARC-Target-URI: {address}", f"Content-Type: {media}", *more]
    head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""])
    return head.encode() + body + b"\r\n\r\n"


def served(body: bytes, *fields: str, status: str = "HTTP/1.1 200 OK", media: str = "text/html") -> bytes:
    """An HTTP response."""
    head = "\r\n".join([status, *fields, *([f"Content-Type: {media}"] if media else []), "", ""])
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
    record(served(b"gone", status="HTTP/1.1 404 Not Found")),
    record(served(b"\x89PNG", media="image/png")),
]
RECORDS = [
    *OTHERS,
    *map(record, PAGES.values()),
    record(b"extracted before", "conversion", "text/plain"),
    record(page("by itself"), "resource", "text/html"),
]
TEXTS = [*PAGES, "extracted before", "by itself"]

HALF = page("half of a text")
MEMBERS = gzip.compress(page("first"), mtime=0) + gzip.compress(page("second"), mtime=0)
CUT = gzip.compress(HALF + b" " * 9000, 0, mtime=0)[:-200]


def declared(text: str, encoding: str, name: str) -> bytes:
    return served(page(text, encoding), media=f"text/html; charset={name}")


ODD = {  # what servers and crawlers write -> texts
    "two codings": (served(gzip.compress(gzip.compress(page("a"))), "Content-Encoding: gzip, gzip"), "a"),
    "repeated field": (served(gzip.compress(page("a")), "Content-Encoding:", "Content-Encoding: gzip"), "a"),
    "packed chunks": (served(in_chunks(gzip.compress(page("a"))), "Transfer-Encoding: gzip, chunked"), "a"),
    "packed transfer": (served(gzip.compress(page("a")), "Transfer-Encoding: gzip"), "a"),
    "a line without colon": (served(gzip.compress(page("a")), "no colon", "Content-Encoding: gzip"), "a"),
    "blanks before colons": (served(page("a"), "Content-Type : text/html", media=""), "a"),
    "no last chunk": (served(in_chunks(HALF)[:-5], "Transfer-Encoding: chunked"), "half of a text"),
    "members of gzip": (served(MEMBERS, "Content-Encoding: gzip"), "first second"),
    "cut gzip": (served(CUT, "Content-Encoding: gzip"), "half of a text"),
    "brotli": (served(brotli.compress(page("a")), "Content-Encoding: br"), "a"),
    "unpacked brotli": (served(page("a"), "Content-Encoding: br"), "a"),
    "zstd": (served(zstandard.ZstdCompressor().compress(page("a")), "Content-Encoding: zstd"), "a"),
    "raw deflate": (served(zlib.compress(page("a"))[2:-4], "Content-Encoding: deflate"), "a"),
    "small window": (served(zlib.compress(page("a"), wbits=10), "Content-Encoding: deflate"), "a"),
    "unpacked text": (served(b"a", "Content-Encoding: gzip", media="text/plain"), "a"),
    "lines of one field": (served(page("a"), "X: a", *[" b"] * 100_000), "a"),
    "no coding": (served(page("a"), "Content-Encoding: utf-8"), "a"),
    "HTTP/2": (served(page("a"), status="HTTP/2 200"), "a"),
    "many fields": (served(page("a"), *(f"Set-Cookie: {n}" for n in range(300))), "a"),
    "a long field": (served(page("a"), "Set-Cookie: " + "x" * 90_000), "a"),
    "media type twice": (served(page("a"), media="text/html, text/html; charset=utf-8"), "a"),
    "no semicolon": (served(page("\u00e9", "cp1252"), media="text/html charset = cp1252"), "\u00e9"),
    "no media type": (served(b"<!doctype html>" + page("a"), media=""), "a"),
    "xhtml": (served(b"<html><script/><p>a</p><iframe/><p>b</p>", media="application/xhtml+xml"), "a b"),
    "plain utf-16": (served("a\u00e9".encode("utf-16"), media="text/plain"), "a\u00e9"),
    "plain latin": (served(b"caf\xe9 caf\xe9 au lait", media="text/plain"), "caf\u00e9 caf\u00e9 au lait"),
    "utf-16 without a mark": (served(page("a").decode().encode("utf-16-le")), "a"),
    "shift_jis": (declared("\u2460 \u9ad9", "cp932", "shift_jis"), "\u2460 \u9ad9"),
    "euc-kr": (declared("\ub620\ubc29", "cp949", "euc-kr"), "\ub620\ubc29"),
    "big5": (declared("\u6052\u88cf", "big5hkscs", "big5"), "\u6052\u88cf"),
    "a commented charset": (served(b"<!-- <meta charset=koi8-r> -->" + page("\u00e9")), "\u00e9"),
    "xml's own word": (served(b'<?xml encoding="iso-8859-2"?>' + page("\u0142", "iso-8859-2")), "\u0142"),
    "a hostile charset": (served(page("a"), media="text/html; charset=unicode_escape"), "a"),
}  # fmt: skip
