"""A hostile or damaged parquet file can only end its reader: the rows are equal, or there is one line of
error.
"""

import io
import os
import random
import resource
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pyarrow as pa
import pytest
from pyarrow import parquet

from atelier.engine.config.error import DataError
from atelier.engine.data.parquet import ParquetReader
from atelier.engine.data.parquet_process import MEMORY
from atelier.engine.data.row import Column
from tests.engine.data.parquet_bombs import bomb

COLUMNS = [Column(names=("text",)), Column(names=("label",), may_be_number=True)]
FLIPS = 120
Found = list[tuple[int, dict[str, object]]]


@pytest.fixture(scope="module")
def reader() -> Iterator[ParquetReader]:
    reader = ParquetReader()
    yield reader
    reader.close()


def read(reader: ParquetReader, data: bytes) -> Found:
    def broken(place: str, problem: str) -> None:
        raise DataError(f"{place}: {problem}")

    return list(reader.rows(io.BytesIO(data), "a.parquet", COLUMNS, broken))


def whole(compression: str, seed: int) -> bytes:
    """A file with dictionaries and plain pages, several row groups and columns, and checksums of pages."""
    dice = random.Random(seed)
    texts = ["".join(dice.choices("abcdefgh é", k=dice.randrange(40))) for _ in range(60)]
    rows = [{"text": text, "label": n % 3 or None, "more": [n, n]} for n, text in enumerate(texts)]
    target = io.BytesIO()
    parquet.write_table(
        pa.Table.from_pylist(rows),
        target,
        row_group_size=25,
        compression=compression,
        use_dictionary=["label"] if seed % 2 else ["text", "label"],
        write_page_checksum=True,
    )
    return target.getvalue()


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("part", ["footer", "pages"])
def test_a_flipped_bit_changes_no_row_unseen_and_ends_nothing(
    reader: ParquetReader, compression: str, part: str
) -> None:
    dice, refused = random.Random(f"{compression} {part}"), 0
    files = [whole(compression, seed) for seed in range(4)]
    rows = [read(reader, file) for file in files]
    assert all(len(each) == 60 for each in rows)
    for turn in range(FLIPS):
        data = bytearray(files[turn % 4])
        footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
        place = dice.randrange(footer, len(data)) if part == "footer" else dice.randrange(footer)
        data[place] ^= 1 << dice.randrange(8)
        try:
            found = read(reader, bytes(data))
        except DataError as error:
            [line] = str(error).splitlines()
            assert line.startswith("a.parquet:"), line
            refused += 1
        else:
            assert found == rows[turn % 4], f"turn {turn}"
    assert refused > FLIPS // 4


CLAIMS: list[tuple[dict[str, int], str]] = [
    ({"value_bytes": 3 << 29}, "needs more than 1024 MiB to be unpacked"),
    ({"claimed_page": 2**31 - 1}, "needs more than 1024 MiB to be unpacked"),
    ({"value_bytes": 140 << 20}, "more than 128 MiB in one text"),
    ({"claimed_page": -5}, "not a complete parquet file (Invalid page header)"),
    ({"rows": 2**31 - 1}, "claims 2147483647 rows in 171 bytes"),
    ({"file_rows": 7}, "claims 7 rows, but 1 in its row groups"),
    ({"file_rows": 9, "group_rows": 9}, "row group 0 claims 9 rows, but 1 in column 'text'"),
    ({"file_rows": -1, "group_rows": -1}, "row group 0 claims -1 rows, but 1 in column 'text'"),
    ({"rows": 9, "page_values": 3}, "row group 0 claims 9 rows, but holds 3"),
    ({"rows": 9, "run": 3}, "not a complete parquet file ("),
]


def test_what_no_file_can_hold_is_refused_within_bounded_memory() -> None:
    files = [bomb(**claims) for claims, _ in CLAIMS]
    with ProcessPoolExecutor(1, get_context("spawn")) as alone:  # whose child is the reader's
        told, own, childs = alone.submit(refusals, files).result()
    for (claims, says), line in zip(CLAIMS, told, strict=True):
        assert line.startswith("a.parquet: ") and says in line and "; " in line, claims
        assert "\n" not in line
    assert own < 300 << 10 and childs < MEMORY >> 10  # KiB


def refusals(files: list[bytes]) -> tuple[list[str], int, int]:
    """The refusal of each file; the growth of this process and the peak of its child, in KiB."""
    before, reader, told = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, ParquetReader(), []
    for data in files:
        with pytest.raises(DataError) as caught:
            list(reader.rows(io.BytesIO(data), "a.parquet", COLUMNS[:1], lambda *_: None))
        told.append(str(caught.value))
    reader.close()
    own, childs = (
        resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return told, own - before, childs


def test_a_dictionary_that_expands_to_gigabytes_is_read_a_few_rows_at_a_time(reader: ParquetReader) -> None:
    data = bomb(value_bytes=1 << 20, rows=1100)  # more than 1 GiB out of 200 bytes
    assert len(data) < 300
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    numbers = [
        number
        for number, row in reader.rows(io.BytesIO(data), "a.parquet", COLUMNS[:1], lambda *_: None)
        if row == {"text": "\0" * (1 << 20)}
    ]
    assert numbers == list(range(1, 1101))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10


@pytest.mark.parametrize(
    ("what", "says"),
    [
        (signal.SIGKILL, "not a complete parquet file (its reader ended with signal 9 after row 0)"),
        (signal.SIGSTOP, "reading stopped at row 0 for 300 s"),
    ],
)
def test_a_reader_that_ends_or_says_nothing_is_one_line_and_the_next_file_is_read(
    reader: ParquetReader, what: signal.Signals, says: str
) -> None:
    data = whole("none", 0)
    rows = read(reader, data)
    child = reader._process
    process, channel = child._process, child._channel
    assert process is not None and channel is not None
    channel.settimeout(0.5)

    class Hitting(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            os.kill(process.pid, what)
            return super().read(size)

    with pytest.raises(DataError) as caught:
        list(reader.rows(Hitting(data), "a.parquet", COLUMNS, lambda *_: None))
    assert str(caught.value) == f"a.parquet: {says}; copy it again"
    assert process.returncode == -signal.SIGKILL  # and nothing is left running
    assert read(reader, data) == rows


def test_texts_in_dictionaries_views_and_large_columns_are_the_same_texts(reader: ParquetReader) -> None:
    texts = ["one", None, "", "d\u00e9j\u00e0", "one"] * 5
    plain = pa.array(texts)
    for column in (plain, plain.dictionary_encode(), plain.cast(pa.large_string()), plain.view(pa.string())):
        target = io.BytesIO()
        parquet.write_table(pa.table({"text": column, "label": pa.nulls(25)}), target)
        found = read(reader, target.getvalue())
        assert found == [(n, {"text": text, "label": None}) for n, text in enumerate(texts, 1)]
