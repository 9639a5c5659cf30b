"""A file of expert states: equal slots, mapped to read all of them, read and written a slot at a time in
training. It is scratch; the checkpoint is the source of truth.
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

PAGE = 4096  # bytes; direct reads need slots and memory aligned to it


class StateFile:
    """`slots` states of `floats` numbers of one type in an unnamed file of `folder`, which is removed with
    the process. Reads and writes bypass the page cache if the file system supports it: data read once per
    step would only push out other pages and be copied.

    Every written slot has a checksum in memory; a mismatch is damage. (CRC-32 is for failing disks, as only
    this process can open the file, and is seven times as fast as SHA-256.)
    """

    def __init__(self, folder: Path, slots: int, floats: int, dtype: torch.dtype) -> None:
        self.folder, self.slots, self.floats, self.dtype = folder, slots, floats, dtype
        self.state_bytes = floats * dtype.itemsize
        self.slot_bytes = -(-self.state_bytes // PAGE) * PAGE
        self.slot_floats = self.slot_bytes // dtype.itemsize  # numbers read and written per slot
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
        """[slots, floats of a slot] all states as one tensor, shared with the file. Call `forget` after
        writing to it. Raises OSError for a full disk.
        """
        os.posix_fallocate(self._fd, 0, self.slots * self.slot_bytes)  # otherwise writing raises a signal
        pages = mmap.mmap(self._fd, self.slots * self.slot_bytes)
        return torch.frombuffer(pages, dtype=self.dtype).view(self.slots, -1)

    def forget(self) -> None:
        """Trust the present slots, which were filled through `mapped`."""
        self._sums.clear()

    def read(self, slot: int, into: Tensor) -> None:
        """Read into `into` [slot_floats]. Raises DamageError if the slot differs from the written one."""
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
        was_direct = self._is_direct  # read first: the other thread may change it
        try:
            return how(self._fd, [view], begin)
        except OSError as error:
            if error.errno != errno.EINVAL or not was_direct:
                raise
        self._go_direct(wanted=False)  # the rest of a short read is not aligned
        return how(self._fd, [view], begin)

    def _go_direct(self, *, wanted: bool = True) -> None:
        flag = getattr(os, "O_DIRECT", 0)
        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL) & ~flag
        with suppress(OSError):  # not supported by the file system
            fcntl.fcntl(self._fd, fcntl.F_SETFL, flags | flag if wanted else flags)
            self._is_direct = wanted and bool(flag)

    def _damage(self, slot: int) -> DamageError:
        return DamageError(
            f"expert state {slot} on disk in {self.folder} differs from what was written: the disk is"
            " failing",
            "run again, maybe on another disk: it resumes from the last checkpoint",
        )


def _bytes_of(state: Tensor) -> memoryview:
    """The memory of a contiguous tensor."""
    return memoryview(cast(Any, state.numpy())).cast("B")
