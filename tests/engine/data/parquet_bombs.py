"""Hand-written parquet files with footers and pages that no writer makes."""

import struct

import zstandard

I32, I64, BYTES, LIST, STRUCT = 5, 6, 8, 9, 12
PLAIN, RLE_DICTIONARY = 0, 8
UNPACKED, ZSTD = 0, 6
Field = tuple[int, int, bytes]


def varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def number(value: int) -> bytes:
    return varint(value << 1 if value >= 0 else (-value << 1) - 1)


def text(value: str) -> bytes:
    return varint(len(value)) + value.encode()


def listed(kind: int, *values: bytes) -> bytes:
    return bytes([len(values) << 4 | kind]) + b"".join(values)


def thrift(*fields: Field) -> bytes:
    found, before = b"", 0
    for place, kind, value in fields:
        found += bytes([place - before << 4 | kind]) + value
        before = place
    return found + b"\0"


def zeros(size: int) -> bytes:
    packer = zstandard.ZstdCompressor().compressobj()
    block = bytes(1 << 20)
    parts = [packer.compress(block[: min(len(block), size - done)]) for done in range(0, size, len(block))]
    return b"".join(parts) + packer.flush()


def bomb(
    *,
    value_bytes: int = 4,
    rows: int = 1,
    run: int | None = None,
    page_values: int | None = None,
    group_rows: int | None = None,
    file_rows: int | None = None,
    claimed_page: int | None = None,
) -> bytes:
    """A file of one column `text` in which a run repeats the one value of a dictionary, zeros, `rows` times;
    each other number is what that place says instead.
    """
    dictionary = zstandard.ZstdCompressor().compress(struct.pack("<I", value_bytes))
    dictionary += zeros(value_bytes)  # a second frame
    size = 4 + value_bytes
    repeated = b"\1" + varint((rows if run is None else run) << 1) + b"\0"
    packed = zstandard.ZstdCompressor().compress(repeated)
    first = thrift(
        (1, I32, number(2)),
        (2, I32, number(size if claimed_page is None else claimed_page)),
        (3, I32, number(len(dictionary))),
        (7, STRUCT, thrift((1, I32, number(1)), (2, I32, number(PLAIN)))),
    )
    values = rows if page_values is None else page_values
    second = thrift(
        (1, I32, number(0)),
        (2, I32, number(len(repeated))),
        (3, I32, number(len(packed))),
        (
            5,
            STRUCT,
            thrift(*((place, I32, number(n)) for place, n in enumerate((values, RLE_DICTIONARY, 3, 3), 1))),
        ),
    )
    pages = first + dictionary + second + packed
    column = thrift(
        (1, I32, number(6)),
        (2, LIST, listed(I32, number(PLAIN), number(RLE_DICTIONARY))),
        (3, LIST, listed(BYTES, text("text"))),
        (4, I32, number(ZSTD)),
        (5, I64, number(rows)),
        (6, I64, number(size)),
        (7, I64, number(len(pages))),
        (9, I64, number(4 + len(first) + len(dictionary))),
        (11, I64, number(4)),
    )
    chunk = thrift((2, I64, number(4)), (3, STRUCT, column))
    group = thrift(
        (1, LIST, listed(STRUCT, chunk)),
        (2, I64, number(size)),
        (3, I64, number(rows if group_rows is None else group_rows)),
    )
    root = thrift((4, BYTES, text("schema")), (5, I32, number(1)))
    leaf = thrift((1, I32, number(6)), (3, I32, number(0)), (4, BYTES, text("text")), (6, I32, number(0)))
    footer = thrift(
        (1, I32, number(1)),
        (2, LIST, listed(STRUCT, root, leaf)),
        (3, I64, number(rows if file_rows is None else file_rows)),
        (4, LIST, listed(STRUCT, group)),
    )
    return b"PAR1" + pages + footer + struct.pack("<I", len(footer)) + b"PAR1"
