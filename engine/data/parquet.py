"""Rows of parquet files: only the columns that are asked for, a row group at a time."""

from collections.abc import Callable, Iterator, Sequence
from typing import IO

import pyarrow as pa
from pyarrow import parquet

from atelier.engine.config.base import Json
from atelier.engine.config.error import AtelierError, DataError, printable
from atelier.engine.data.row import Column

BUFFER = 1 << 22  # packed bytes of a column that are read at a time
BATCH_BYTES, BATCH_ROWS = 1 << 23, 4096  # of rows in memory, about
SHOWN = 20  # columns named in an error


def rows(
    file: IO[bytes], path: str, columns: Sequence[Column], broken: Callable[[str, str], None]
) -> Iterator[tuple[int, dict[str, Json]]]:
    """(row number from 1, values) of the columns that are there. Values that are not UTF-8 go to `broken`.

    Raises DataError for a file that is damaged or cut, that lacks a column, or whose column holds no text.
    """
    try:
        with parquet.ParquetFile(file, buffer_size=BUFFER, pre_buffer=False) as opened:
            chosen = _chosen(opened.schema_arrow, path, columns)
            number = 1
            for group in range(opened.num_row_groups):
                size = _batch_rows(opened.metadata.row_group(group), chosen)
                batches = opened.iter_batches(size, row_groups=[group], columns=chosen, use_threads=False)
                for batch in batches:
                    yield from _of_batch(batch, number, path, broken)
                    number += batch.num_rows
    except AtelierError:
        raise
    except (pa.ArrowException, OSError) as error:
        reason = printable(" ".join(str(error).split()))
        raise DataError(f"{path}: not whole parquet ({reason}); copy it again") from None


def _chosen(schema: pa.Schema, path: str, columns: Sequence[Column]) -> list[str]:
    """Of each column the first name that is there."""
    chosen, there = [], ", ".join(schema.names[:SHOWN]) + (", ..." if len(schema.names) > SHOWN else "")
    for column in columns:
        name = next((name for name in column.names if name in schema.names), "")
        if not name and column.is_needed:
            others = "".join(f" (or '{other}')" for other in column.names[1:])
            there = printable(there or "none")
            raise DataError(f"{path}: has no column '{column.names[0]}'{others}; columns there: {there}")
        if name and not _is_text(kind := schema.field(name).type, column.may_be_number):
            text = [each.name for each in schema if _is_text(each.type, column.may_be_number)]
            raise DataError(
                f"{path}: column '{name}' is {printable(kind)}, not text; columns of text: "
                f"{printable(', '.join(text) or 'none')}"
            )
        chosen += [name] if name else []
    return chosen


def _is_text(kind: pa.DataType, may_be_number: bool) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    is_number = pa.types.is_integer(kind) or pa.types.is_boolean(kind)
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return is_text or pa.types.is_null(kind) or (may_be_number and is_number)


def _batch_rows(group: parquet.RowGroupMetaData, chosen: list[str]) -> int:
    """Rows whose text has about BATCH_BYTES."""
    sizes = [group.column(index) for index in range(group.num_columns)]
    size = sum(each.total_uncompressed_size for each in sizes if each.path_in_schema in chosen)
    return max(1, min(BATCH_ROWS, BATCH_BYTES * max(group.num_rows, 1) // max(size, 1)))


def _of_batch(
    batch: pa.RecordBatch, number: int, path: str, broken: Callable[[str, str], None]
) -> Iterator[tuple[int, dict[str, Json]]]:
    try:
        found = batch.to_pylist()
    except UnicodeDecodeError:
        for index in range(batch.num_rows):
            try:
                [row] = batch.slice(index, 1).to_pylist()
            except UnicodeDecodeError as error:
                broken(f"{path}:{number + index}", f"byte {error.start} of the text is not UTF-8")
            else:
                yield number + index, row
        return
    yield from enumerate(found, number)
