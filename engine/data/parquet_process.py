"""Read parquet files for `parquet.rows` in a separate process (engine/io/limited_process.py).

A damaged or hostile file can only end this process: it maps at most `MEMORY` bytes, and sends arrow streams,
which the parent checks. It opens no file, but asks the parent for every part.

Messages to the process: OPEN, PART. From it: READ (offset, length), ROWS, DONE, REFUSED.
"""

import io
import json
import socket
import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from typing_extensions import Buffer

from atelier.engine.config.error import AtelierError, DataError, printable
from atelier.engine.data.row import Column
from atelier.engine.io.limited_process import REFUSED, Limits, receive, send

if TYPE_CHECKING:  # imported once memory is limited
    import pyarrow as pa
    from pyarrow import parquet

MEMORY = 1 << 30  # bytes of address space; the libraries need about 350 MB
MOST_PART = 1 << 24  # bytes per READ
MOST_TEXT = 1 << 27  # bytes per value
MOST_PARTS = 10_000  # objects per list
BUFFER = 1 << 22  # packed bytes of a column read at a time
BATCH_BYTES, BATCH_ROWS = 1 << 20, 4096  # of rows in memory, approximately
FEWER = 64  # factor of fewer rows at a time if they do not fit
ROWS_PER_BYTE = 1024  # of a file; with more, rows cannot have text of their own
SHOWN = 20  # columns named in an error
RANGE = struct.Struct("<QQ")
OPEN, PART, READ, ROWS, DONE = (bytes([letter]) for letter in b"OPRBD")


class _Asked(io.RawIOBase):
    """A file of `size` bytes whose parts are read by the parent."""

    def __init__(self, channel: socket.socket, size: int) -> None:
        self._channel, self._size, self._place = channel, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        self._place = max(0, start + offset)
        return self._place

    def tell(self) -> int:
        return self._place

    def read(self, size: int = -1) -> Buffer:
        left = max(0, self._size - self._place)
        wanted, parts = left if size < 0 else min(size, left), []
        while wanted:
            send(self._channel, READ, RANGE.pack(self._place, min(wanted, MOST_PART)))
            _, part = receive(self._channel, MOST_PART)
            if not part:
                break
            parts.append(part)
            self._place += len(part)
            wanted -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _send_rows(channel: socket.socket, path: str, size: int, columns: Sequence[Column]) -> None:
    """Send all rows. Raises DataError for a file that is damaged, truncated or inconsistent, lacks a column,
    or whose column is not text.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        file = pa.PythonFile(_Asked(channel, size), mode="r")
        with parquet.ParquetFile(
            file, buffer_size=BUFFER, pre_buffer=False, page_checksum_verification=True
        ) as opened:
            chosen = _chosen(opened.schema_arrow, path, columns)
            _check_claims(opened.metadata, chosen, path, size)
            for group in range(opened.num_row_groups):
                for batch in _batches(opened, group, chosen, path):
                    _send_batch(channel, batch, path)
    except (AtelierError, EOFError, ConnectionError):
        raise
    except MemoryError:
        raise DataError(
            f"{path}: needs more than {MEMORY >> 20} MiB to be unpacked; write it again with smaller pages"
        ) from None
    except Exception as error:  # any type: the bytes are not trusted
        reason = printable(" ".join(str(error).split()) or type(error).__name__)
        raise DataError(f"{path}: not a complete parquet file ({reason}); copy it again") from None


def _chosen(schema: "pa.Schema", path: str, columns: Sequence[Column]) -> list[str]:
    """The first existing name of each column; without columns all names, of any type."""
    if not columns:
        return list(schema.names)
    chosen, there = [], ", ".join(schema.names[:SHOWN]) + (", ..." if len(schema.names) > SHOWN else "")
    for column in columns:
        name = next((name for name in column.names if name in schema.names), "")
        if not name and column.is_needed:
            others = "".join(f" (or '{other}')" for other in column.names[1:])
            there = printable(there or "none")
            raise DataError(f"{path}: has no column '{column.names[0]}'{others}; columns there: {there}")
        if name and column.is_list:
            if not _is_list(kind := schema.field(name).type):
                raise DataError(f"{path}: column '{name}' is {printable(kind)}, not a list of objects")
        elif name and not _is_text(kind := schema.field(name).type, column.may_be_number):
            text = [each.name for each in schema if _is_text(each.type, column.may_be_number)]
            raise DataError(
                f"{path}: column '{name}' is {printable(kind)}, not text; columns of text: "
                f"{printable(', '.join(text) or 'none')}"
            )
        chosen += [name] if name else []
    return chosen


def _is_text(kind: "pa.DataType", may_be_number: bool) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    is_number = types.is_integer(kind) or types.is_boolean(kind)
    is_text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    return is_text or types.is_null(kind) or (may_be_number and is_number)


def _is_list(kind: "pa.DataType") -> bool:
    from pyarrow import types

    is_list = types.is_list(kind) or types.is_large_list(kind)
    return is_list and (types.is_struct(kind.value_type) or types.is_null(kind.value_type))


def _check_claims(about: "parquet.FileMetaData", chosen: list[str], path: str, size: int) -> None:
    """Raise DataError if the footer contradicts itself or claims more rows than the file can hold."""
    if about.num_rows > ROWS_PER_BYTE * size:
        raise DataError(f"{path}: claims {about.num_rows} rows in {size} bytes; copy it again")
    groups = [about.row_group(index) for index in range(about.num_row_groups)]
    total = sum(group.num_rows for group in groups)
    if total != about.num_rows:
        raise DataError(f"{path}: claims {about.num_rows} rows, but {total} in its row groups; copy it again")
    for number, group in enumerate(groups):
        for column in (group.column(index) for index in range(group.num_columns)):
            if column.path_in_schema in chosen and column.num_values != group.num_rows:
                raise DataError(
                    f"{path}: row group {number} claims {group.num_rows} rows, but {column.num_values} in"
                    f" column '{printable(column.path_in_schema)}'; copy it again"
                )


def _batches(
    opened: "parquet.ParquetFile", group: int, chosen: list[str], path: str
) -> Iterator["pa.RecordBatch"]:
    """The rows of a row group; fewer at a time if a repeated value makes them larger than expected."""
    about, done = opened.metadata.row_group(group), 0
    rows = _batch_rows(about, chosen)
    while done < about.num_rows:
        left_out = done
        try:
            for batch in opened.iter_batches(rows, row_groups=[group], columns=chosen, use_threads=False):
                fresh = batch.slice(min(left_out, batch.num_rows))
                left_out -= batch.num_rows - fresh.num_rows
                done += fresh.num_rows
                yield _plain(fresh)
        except MemoryError:
            if rows == 1:
                raise
            rows = max(1, rows // FEWER)
        else:
            break
    if done != about.num_rows:
        raise DataError(
            f"{path}: row group {group} claims {about.num_rows} rows, but holds {done}; copy it again"
        )


def _batch_rows(group: "parquet.RowGroupMetaData", chosen: list[str]) -> int:
    """Number of rows with about BATCH_BYTES of text."""
    sizes = [group.column(index) for index in range(group.num_columns)]
    parts = [(each.path_in_schema, each.total_uncompressed_size) for each in sizes]
    size = sum(size for path, size in parts if path in chosen or path.split(".")[0] in chosen)
    return max(1, min(BATCH_ROWS, BATCH_BYTES * max(group.num_rows, 1) // max(size, 1)))


def _plain(batch: "pa.RecordBatch") -> "pa.RecordBatch":
    """The batch without dictionaries."""
    import pyarrow as pa

    columns = [each.dictionary_decode() if isinstance(each, pa.DictionaryArray) else each for each in batch]
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def _send_batch(channel: socket.socket, batch: "pa.RecordBatch", path: str) -> None:
    """Send the rows as arrow streams of about BATCH_BYTES each, or of one row."""
    import pyarrow as pa

    if batch.nbytes > 2 * BATCH_BYTES and batch.num_rows > 1:
        half = batch.num_rows // 2
        _send_batch(channel, batch.slice(0, half), path)
        _send_batch(channel, batch.slice(half), path)
        return
    lists = [each for each in batch if pa.types.is_list(each.type) or pa.types.is_large_list(each.type)]
    if any(len(each.flatten()) > MOST_PARTS * batch.num_rows for each in lists):
        raise DataError(f"{path}: more than {MOST_PARTS} objects in a list; cut it into several rows")
    if batch.nbytes > MOST_TEXT:
        raise DataError(f"{path}: more than {MOST_TEXT >> 20} MiB in one text; cut it into several")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    send(channel, ROWS, sink.getvalue())


def serve(channel: socket.socket, limits: Limits) -> None:
    """Serve files until the parent is gone."""
    while True:
        _, asked = receive(channel, MOST_PART)
        given = json.loads(bytes(asked))
        columns = [Column(**{**each, "names": tuple(each["names"])}) for each in given["columns"]]
        try:
            _send_rows(channel, given["path"], given["size"], columns)
        except DataError as error:
            send(channel, REFUSED, str(error).encode(errors="surrogatepass"))
        else:
            send(channel, DONE)
