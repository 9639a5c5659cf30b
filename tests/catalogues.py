"""Compiled catalogues as msgfmt writes them."""

import struct


def as_catalogue(pairs: list[tuple[str, str]], *, charset: str = "utf-8", order: str = "<") -> bytes:
    """As msgfmt compiles them: sorted, each string with a zero byte after it."""
    pairs = sorted([("", f"Content-Type: text/plain; charset={charset}\n"), *pairs])
    texts = [[text.encode(charset) for text in each] for each in zip(*pairs, strict=True)]
    tables, strings = [], b""
    for each in texts:
        for text in each:
            tables += [len(text), 28 + 16 * len(pairs) + len(strings)]
            strings += text + b"\0"
    places = (28, 28 + 8 * len(pairs), 0, 28 + 16 * len(pairs))
    return struct.pack(f"{order}{7 + len(tables)}I", 0x950412DE, 0, len(pairs), *places, *tables) + strings
