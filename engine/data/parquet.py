"""Read rows of parquet files: only the requested columns, a few rows at a time, in a separate process.

Parquet libraries trust the file's offsets, sizes and counts: a file of 299 bytes can ask for gigabytes, and
one flipped bit can end the reading process. See parquet_process.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import IO, TYPE_CHECKING

from atelier.engine.config.base import Json
from atelier.engine.config.error import DataError
from atelier.engine.data.parquet_process import (
    BATCH_BYTES,
    MEMORY,
    MOST_PART,
    MOST_TEXT,
    OPEN,
    PART,
    RANGE,
    READ,
    ROWS,
)
from atelier.engine.data.row import Column
from atelier.engine.io.limited_process import REFUSED, LimitedProcess, Limits, receive, send

if TYPE_CHECKING:  # import takes 0.2 s
    import pyarrow as pa

SILENCE_S = 300.0  # for one batch, without the time for reading the file
MOST_MESSAGE = MOST_TEXT + (1 << 20)
Broken = Callable[[str, str], None]


class ParquetReader:
    """The process that reads parquet files, started for the first one and after a file that ended it."""

    def __init__(self) -> None:
        self._process = LimitedProcess(
            "atelier.engine.data.parquet_process", Limits(MEMORY), silence_s=SILENCE_S
        )
        self._is_free = True

    def rows(
        self, file: IO[bytes], path: str, columns: Sequence[Column], broken: Broken
    ) -> Iterator[tuple[int, dict[str, Json]]]:
        """(row number from 1, values) of the columns that exist; without `columns` all, with values of any
        type. Values that are not UTF-8 go to `broken`.

        Raises DataError for a file that is damaged, truncated, inconsistent or too large for memory, that
        lacks a column, or whose column is not text.
        """
        number = 0
        try:
            for batch in self._batches(file, path, columns):
                yield from _of_batch(batch, number + 1, path, broken)
                number += batch.num_rows
        except (EOFError, ConnectionError, ValueError):
            how = self._process.end()
            raise DataError(
                f"{path}: not a complete parquet file (its reader {how} after row {number}); copy it again"
            ) from None
        except TimeoutError:
            raise DataError(
                f"{path}: reading stopped at row {number} for {SILENCE_S:.0f} s; copy it again"
            ) from None
        finally:
            if not self._is_free:
                self.close()

    def close(self) -> None:
        """End the process."""
        self._process.close()

    def _batches(self, file: IO[bytes], path: str, columns: Sequence[Column]) -> Iterator["pa.RecordBatch"]:
        """The rows, while the process requests parts of the file. Raises DataError for a refusal."""
        channel, size = self._process.channel(), file.seek(0, os.SEEK_END)
        about = {"path": path, "size": size, "columns": [asdict(column) for column in columns]}
        self._is_free = False
        send(channel, OPEN, json.dumps(about).encode())
        room = bytearray(2 * BATCH_BYTES + (1 << 20))  # reused: allocation is expensive
        while True:
            kind, body = receive(channel, MOST_MESSAGE, room)
            if kind == READ:
                offset, length = RANGE.unpack(body)
                file.seek(min(offset, size))
                send(channel, PART, file.read(min(length, MOST_PART)))
                continue
            if kind == ROWS:
                yield _checked(body)
                continue
            self._is_free = True
            if kind == REFUSED:
                raise DataError(str(body, "utf-8", "surrogatepass"))
            return


def _checked(body: memoryview) -> "pa.RecordBatch":
    """The rows of a message. Raises ValueError if it is inconsistent."""
    import pyarrow as pa

    with pa.ipc.open_stream(pa.py_buffer(body)) as stream:
        batch = stream.read_next_batch()
    for column in batch:  # checks text, except for UTF-8
        as_bytes = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
        kind = as_bytes.get(column.type)
        (column.view(kind) if kind else column).validate(full=True)
    return batch


def _of_batch(
    batch: "pa.RecordBatch", number: int, path: str, broken: Broken
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
