"""What is known of experts on disk: one file of equal slots, mapped for who reads all of it, read and written
a slot at a time by who trains. Scratch: the checkpoint is the truth.
"""

import errno
import fcntl
import mmap
import os
import tempfile
import weakref
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from atelier.engine.config.error import DamageError

PAGE = 4096  # bytes; direct reads need slots, and the memory they go to, at multiples


class StateFile:
    """`slots` states of `floats` numbers of one type in a file of `folder` without a name: whatever ends the
    process, it is gone. Reads and writes go past the page cache where the file system lets them: what is read
    once a step would only push other pages out of it, and be copied.

    Every slot that was written has a checksum, held in memory; one that does not agree is a damage. (CRC-32:
    it is for disks that fail, on files that nobody else can open, and seven times as fast as SHA-256.)
    """

    def __init__(self, folder: Path, slots: int, floats: int, dtype: torch.dtype) -> None:
        self.folder, self.slots, self.floats, self.dtype = folder, slots, floats, dtype
        self.state_bytes = floats * dtype.itemsize
        self.slot_bytes = -(-self.state_bytes // PAGE) * PAGE
        self.slot_floats = self.slot_bytes // dtype.itemsize  # what is read and written
        self.bytes_read = self.bytes_written = 0
        self._sums: dict[int, int] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self._fd, name = tempfile.mkstemp(dir=folder)
        os.unlink(name)
        weakref.finalize(self, os.close, self._fd)
        os.truncate(self._fd, slots * self.slot_bytes)
        self._is_direct = False
        self._go_direct()

    def mapped(self) -> Tensor:
        """[slots, floats of a slot] all states as one tensor, shared with the file. Whoever writes into it
        calls `forget` afterwards. Raises OSError for a full disk.
        """
        os.posix_fallocate(self._fd, 0, self.slots * self.slot_bytes)  # else a signal, where it is written
        pages = mmap.mmap(self._fd, self.slots * self.slot_bytes)
        return torch.frombuffer(pages, dtype=self.dtype).view(self.slots, -1)

    def forget(self) -> None:
        """Trust the slots as they are: they were filled through `mapped`."""
        self._sums.clear()

    def read(self, slot: int, into: Tensor) -> None:
        """`into` [slot_floats]. Raises DamageError for a slot that is not as it was written."""
        view = _bytes_of(into)
        begin = slot * self.slot_bytes
        done = 0
        while done < len(view):
            count = self._moved(os.preadv, view[done:], begin + done)
            if not count:
                raise self._damage(slot)
            done += count
        self.bytes_read += len(view)
        known = self._sums.get(slot)
        if known is not None and known != zlib.crc32(view):
            raise self._damage(slot)

    def write(self, slot: int, state: Tensor) -> None:
        """Raises OSError for a full or failing disk."""
        view = _bytes_of(state)
        begin = slot * self.slot_bytes
        done = 0
        while done < len(view):
            done += self._moved(os.pwritev, view[done:], begin + done)
        self.bytes_written += len(view)
        self._sums[slot] = zlib.crc32(view)

    def _moved(self, how: Callable[[int, list[memoryview], int], int], view: memoryview, begin: int) -> int:
        was_direct = self._is_direct  # before: the other thread may find out first
        try:
            return how(self._fd, [view], begin)
        except OSError as error:
            if error.errno != errno.EINVAL or not was_direct:
                raise
        self._go_direct(wanted=False)  # the rest of a short read is not at a multiple
        return how(self._fd, [view], begin)

    def _go_direct(self, *, wanted: bool = True) -> None:
        flag = getattr(os, "O_DIRECT", 0)
        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL) & ~flag
        with suppress(OSError):  # a file system that cannot
            fcntl.fcntl(self._fd, fcntl.F_SETFL, flags | flag if wanted else flags)
            self._is_direct = wanted and bool(flag)

    def _damage(self, slot: int) -> DamageError:
        return DamageError(
            f"expert state {slot} on disk in {self.folder} is not as it was written: the disk fails",
            "run again, on another disk perhaps: it goes on from the last checkpoint",
        )


def _bytes_of(state: Tensor) -> memoryview:
    """The memory of a contiguous tensor."""
    return memoryview(cast(Any, state.numpy())).cast("B")
