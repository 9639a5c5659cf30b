"""Expert states on disk: one file of equal slots, mapped for who reads all of it, read and written a slot at
a time by who trains. Scratch: the checkpoint is the truth.

A state is `floats` numbers of one type: an expert's weights, then its two moments.
"""

import hashlib
import mmap
import os
import tempfile
import weakref
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from atelier.engine.config.error import DamageError

PAGE = 4096  # bytes; a slot begins at a multiple, as direct reads need it


class StateFile:
    """`slots` states of `floats` numbers in a file of `folder` without a name: whatever ends the process, it
    is gone. Every slot that was written has a digest, held in memory; one that does not agree is a damage.
    """

    def __init__(self, folder: Path, slots: int, floats: int, dtype: torch.dtype) -> None:
        self.folder, self.slots, self.floats, self.dtype = folder, slots, floats, dtype
        self.state_bytes = floats * dtype.itemsize
        self.slot_bytes = -(-self.state_bytes // PAGE) * PAGE
        self.bytes_read = self.bytes_written = 0
        self._digests: dict[int, bytes] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self._fd, name = tempfile.mkstemp(dir=folder)
        os.unlink(name)
        weakref.finalize(self, os.close, self._fd)
        os.truncate(self._fd, slots * self.slot_bytes)

    def mapped(self) -> Tensor:
        """[slots, floats of a slot] all states as one tensor, shared with the file. Whoever writes into it
        calls `forget` afterwards. Raises OSError for a full disk.
        """
        os.posix_fallocate(self._fd, 0, self.slots * self.slot_bytes)  # else a signal, where it is written
        pages = mmap.mmap(self._fd, self.slots * self.slot_bytes)
        return torch.frombuffer(pages, dtype=self.dtype).view(self.slots, -1)

    def forget(self) -> None:
        """Trust the slots as they are: they were filled through `mapped`."""
        self._digests.clear()

    def read(self, slot: int, into: Tensor) -> None:
        """Raises DamageError for a slot that is not as it was written."""
        view = _bytes_of(into)
        begin = slot * self.slot_bytes
        done = 0
        while done < len(view):
            count = os.preadv(self._fd, [view[done:]], begin + done)
            if not count:
                raise self._damage(slot)
            done += count
        self.bytes_read += len(view)
        known = self._digests.get(slot)
        if known is not None and known != hashlib.sha256(view).digest():
            raise self._damage(slot)

    def write(self, slot: int, state: Tensor) -> None:
        """Raises OSError for a full or failing disk."""
        view = _bytes_of(state)
        begin = slot * self.slot_bytes
        done = 0
        while done < len(view):
            done += os.pwritev(self._fd, [view[done:]], begin + done)
        self.bytes_written += len(view)
        self._digests[slot] = hashlib.sha256(view).digest()

    def _damage(self, slot: int) -> DamageError:
        return DamageError(
            f"expert state {slot} on disk in {self.folder} is not as it was written: the disk fails",
            "run again, on another disk perhaps: it goes on from the last checkpoint",
        )


def _bytes_of(state: Tensor) -> memoryview:
    """The memory of a contiguous tensor."""
    return memoryview(cast(Any, state.numpy())).cast("B")
