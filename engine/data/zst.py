"""Unpack zstd (RFC 8878) while reading, with bounded memory."""

import io
from typing import IO

import zstandard
from typing_extensions import Buffer

from atelier.engine.config.error import DataError

MOST_WINDOW = 1 << 27  # bytes, zstd's own default limit (`--long=27`)
PIECE = 1 << 9  # packed bytes at a time: 4 bytes can expand to 128 KiB, all of them to 16 MiB


class Unpacked(io.RawIOBase):
    """The bytes of `inner`'s frames, one after another. Raises DataError naming `path` if data is damaged or
    truncated, or needs more than `MOST_WINDOW` to unpack.
    """

    def __init__(self, inner: IO[bytes], path: str) -> None:
        self._inner, self._path = inner, path
        self._error = zstandard.ZstdError
        self._unpacker = zstandard.ZstdDecompressor(max_window_size=MOST_WINDOW)
        self._frame = self._unpacker.decompressobj()
        self._is_inside = False  # inside of a frame
        self._packed, self._ready = b"", memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer)
        while not self._ready:
            self._packed = self._packed or self._inner.read(PIECE)
            if not self._packed:
                if self._is_inside:
                    raise DataError(
                        f"{self._path}: incomplete zstd data: it ends within a frame; copy it again"
                    )
                return 0
            self._unpack()
        part = self._ready[: len(view)]
        view[: len(part)] = part
        self._ready = self._ready[len(part) :]
        return len(part)

    def _unpack(self) -> None:
        try:
            self._ready = memoryview(self._frame.decompress(self._packed))
        except self._error as error:
            reason = str(error).removeprefix("zstd decompress error: ")
            if "too much memory" in reason:
                raise DataError(
                    f"{self._path}: needs a window of more than {MOST_WINDOW >> 20} MiB to be unpacked; pack"
                    " it without --long or --ultra"
                ) from None
            if "ictionary" in reason:
                raise DataError(
                    f"{self._path}: needs a dictionary to be unpacked; pack it without one"
                ) from None
            raise DataError(f"{self._path}: not zstd data ({reason}); copy it again") from None
        self._is_inside, self._packed = not self._frame.eof, self._frame.unused_data
        if self._frame.eof:
            self._frame = self._unpacker.decompressobj()
