"""Units of weights in a model's files, in pieces."""

import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from atelier.engine.config.error import DamageError
from atelier.engine.io.storage import open_regular


class FileSpan(NamedTuple):
    """Numbers in a file, and their place in a buffer."""

    path: Path
    offset: int  # bytes
    count: int
    dtype: torch.dtype
    into: int  # index of the first one


class StoredUnits:
    """Units by number, each with the numbers of its sources. Read-only; counts the bytes read."""

    def __init__(self, units: Sequence[Sequence[FileSpan]]) -> None:
        self.units = units
        self._files: dict[Path, int] = {}
        self.bytes_read = 0

    def read(self, unit: int, into: Tensor) -> None:
        """Raises DamageError for a file that ends too early, and OSError."""
        for source in self.units[unit]:
            target = into[source.into : source.into + source.count]
            if target.dtype == source.dtype and target.device.type == "cpu":
                self._read(source, target)
                continue
            staged = torch.empty(source.count, dtype=source.dtype)
            self._read(source, staged)
            target.copy_(staged)

    def write(self, unit: int, state: Tensor) -> None:
        raise AssertionError("read-only weights have changed")

    def _read(self, source: FileSpan, target: Tensor) -> None:
        view = memoryview(cast(Any, target.view(torch.uint8).numpy()))
        file, done = self._file(source.path), 0
        while done < len(view):
            count = os.preadv(file, [view[done:]], source.offset + done)
            if not count:
                raise DamageError(
                    f"{source.path} ends before byte {source.offset + len(view)}, which was there when it"
                    " was opened",
                    "its file was changed: make or fetch the model again",
                )
            done += count
        self.bytes_read += len(view)

    def _file(self, path: Path) -> int:
        if path not in self._files:
            with open_regular(path) as file:
                self._files[path] = os.dup(file.fileno())
            weakref.finalize(self, os.close, self._files[path])
        return self._files[path]
