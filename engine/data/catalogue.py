"""Read messages of a compiled translation catalogue (gettext's .mo): a header, then two tables of lengths and
offsets, for originals and translations.
"""

import re
import struct
from collections.abc import Callable, Iterator

from atelier.engine.config.error import DataError

ORIGINAL, TRANSLATION, NAME = "msgid", "msgstr", "catalogue"
MAGIC = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}
HEADER = 20  # bytes: magic, revision, number of messages, offsets of the two tables
MOST = 1 << 28  # bytes per file
CONTEXT, PLURAL = "\x04", "\0"
_CHARSET = re.compile(rb"charset=([\w.:-]+)", re.IGNORECASE)
_KNOWN = re.compile(  # Python's character sets whose decoding takes linear time
    r"utf-?8|(us-)?ascii|iso[_-]?8859[_-]\d+|latin-?\d|(windows-|cp)\d{3,4}|koi8-[rtu]|euc-(jp|kr)|gb2312|gbk|"
    r"gb18030|big5(-?hkscs)?|shift[_-]?jis|tis-?620",
    re.IGNORECASE,
)


def messages(
    raw: bytes, path: str, broken: Callable[[str, str], None]
) -> Iterator[tuple[int, dict[str, str]]]:
    """Number (from 1), original and translation of each message, in file order; the first form of plurals,
    without contexts. Messages outside the file, or not in the catalogue's character set, go to `broken`
    (place, problem). Raises DataError naming `path` if the file is not a catalogue.
    """
    order = MAGIC.get(raw[:4])
    if order is None or len(raw) < HEADER:
        raise DataError(f"{path}: not a compiled catalogue (.mo); compile a .po with msgfmt")
    if len(raw) > MOST:
        raise DataError(f"{path}: more than {MOST >> 20} MiB in one catalogue")
    revision, number, *places = struct.unpack_from(f"{order}4I", raw, 4)
    if revision >> 16 > 1:
        raise DataError(f"{path}: a catalogue of revision {revision >> 16}; only 0 and 1 are known")
    if max(places) + 8 * number > len(raw):
        raise DataError(f"{path}: its tables of {number} messages end outside the file; copy it again")
    tables = [memoryview(raw)[place : place + 8 * number] for place in places]
    each = [struct.iter_unpack(f"{order}2I", table) for table in tables]
    if sum(length for table in tables for length, _ in struct.iter_unpack(f"{order}2I", table)) > len(raw):
        raise DataError(f"{path}: its messages need more bytes than the file has; copy it again")
    charset, count = "utf-8", 0
    for pair in zip(*each, strict=True):
        original, translation = (raw[offset : offset + length] for length, offset in pair)
        if not pair[0][0]:  # the catalogue's header
            charset = _charset(translation, path)
            continue
        count += 1
        where = f"{path}: message {count}"
        if any(length + offset > len(raw) for length, offset in pair):
            broken(where, "lies outside the file")
            continue
        try:
            texts = [text.decode(charset) for text in (original, translation)]
        except UnicodeDecodeError as error:
            broken(where, f"byte {error.start} is not {charset}")
            continue
        texts[0] = texts[0].rpartition(CONTEXT)[2]
        yield (
            count,
            dict(zip((ORIGINAL, TRANSLATION), (text.partition(PLURAL)[0] for text in texts), strict=True)),
        )


def _charset(header: bytes, path: str) -> str:
    """The character set in a catalogue's header; UTF-8 if there is none."""
    named = _CHARSET.search(header)
    charset = named[1].decode() if named else "utf-8"
    if charset == "CHARSET":  # xgettext's placeholder
        return "utf-8"
    if not _KNOWN.fullmatch(charset):
        raise DataError(f"{path}: character set {charset[:40]} is not supported; convert it to UTF-8")
    return charset
