"""A fixed number of buffers for weights that lie in files. A thread of its own reads what is asked for, in
that order, while others compute.
"""

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from atelier.engine.config.error import DamageError
from atelier.engine.io.storage import open_regular
from atelier.engine.tier.policy import Policy


class Source(NamedTuple):
    """Numbers in a file, and their place in a buffer."""

    path: Path
    offset: int  # bytes
    count: int
    dtype: torch.dtype
    into: int  # number of the first one


class Reader:
    """The thread, and the files that it has open. Counts the bytes that it read."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "weights")
        self._files: dict[Path, int] = {}
        self.bytes_read = 0

    def start(self, sources: Sequence[Source], buffer: Tensor) -> "Future[None]":
        """Begin to fill a buffer. The result raises DamageError for a file that ends too early, and
        OSError.
        """
        return self._thread.submit(self.fill, sources, buffer)

    def fill(self, sources: Sequence[Source], buffer: Tensor) -> None:
        for source in sources:
            target = buffer[source.into : source.into + source.count]
            if target.dtype == source.dtype and target.device.type == "cpu":
                self._read(source, target)
                continue
            staged = torch.empty(source.count, dtype=source.dtype)
            self._read(source, staged)
            target.copy_(staged)

    def _read(self, source: Source, target: Tensor) -> None:
        view = memoryview(cast(Any, target.view(torch.uint8).numpy()))
        file, done = self._file(source.path), 0
        while done < len(view):
            count = os.preadv(file, [view[done:]], source.offset + done)
            if not count:
                raise DamageError(
                    f"{source.path} ends before byte {source.offset + len(view)}, which it had when opened",
                    "whoever changed it may be stopped; `atelier gc --check` looks at every file",
                )
            done += count
        self.bytes_read += len(view)

    def _file(self, path: Path) -> int:
        if path not in self._files:
            with open_regular(path) as file:
                self._files[path] = os.dup(file.fileno())
        return self._files[path]

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)
        for file in self._files.values():
            os.close(file)
        self._files.clear()


class Buffers:
    """`size` buffers for units, each the numbers of its sources. A unit that was asked for, or is in use,
    keeps its buffer; of the others `policy` says which one leaves.
    """

    def __init__(
        self,
        units: Sequence[Sequence[Source]],
        size: int,
        policy: Policy,
        reader: Reader,
        *,
        floats: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.units, self.policy, self.reader = units, policy, reader
        self.buffers = torch.empty(size, floats, dtype=dtype, device=device)
        self._free = list(range(size))
        self._place: dict[int, int] = {}  # buffer by unit
        self._read: dict[int, Future[None]] = {}
        self._awaited: set[int] = set()
        self._used: set[int] = set()
        self.hits = self.misses = 0

    def __contains__(self, unit: int) -> bool:
        """Whether it has a buffer, read or being read."""
        return unit in self._place

    def ask(self, unit: int) -> bool:
        """Begin to read a unit that will be taken, unless it is there; False when no buffer is free."""
        if unit not in self._place:
            if not self._free and not self._evict():
                return False
            self.misses += 1
            place = self._place[unit] = self._free.pop()
            self._read[unit] = self.reader.start(self.units[unit], self.buffers[place])
        elif unit not in self._awaited:
            self.hits += 1
        self._awaited.add(unit)
        return True

    def take(self, unit: int) -> Tensor:
        """The buffer of a unit, once it is read; its own until `give`. Raises what reading it raised."""
        while not self.ask(unit):  # what was asked for first was not taken: the guess was wrong
            self._drop(next(other for other in self._awaited if other not in self._used))
        self._awaited.discard(unit)
        try:
            self._read[unit].result()
        except BaseException:
            self._drop(unit)
            raise
        self._used.add(unit)
        self.policy.used(unit)
        return self.buffers[self._place[unit]]

    def give(self, unit: int) -> None:
        self._used.discard(unit)

    def _evict(self) -> bool:
        there = [unit for unit in self._place if unit not in self._used and unit not in self._awaited]
        if not there:
            return False
        self._drop(self.policy.victim(there))
        return True

    def _drop(self, unit: int) -> None:
        read = self._read.pop(unit)
        if not read.cancel() and read.exception() is not None:  # waits for one that is being read
            pass
        self._awaited.discard(unit)
        self._free.append(self._place.pop(unit))
        self.policy.left(unit)
