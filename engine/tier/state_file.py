"""Expert states on disk: one file of equal slots, mapped for who reads all of it, read and written a slot at
a time by who trains. Scratch: the checkpoint is the truth.

A state is `floats` numbers of one type: an expert's weights, then its two moments.
"""

import hashlib
import os
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from atelier.engine.config.error import DamageError

PAGE = 4096  # bytes; a slot begins at a multiple, as direct reads need it


class StateFile:
    """`slots` states of `floats` numbers. Every slot that was written has a digest, held in memory; one that
    does not agree is a damage, and the training goes back to its last checkpoint.
    """

    def __init__(self, path: Path, slots: int, floats: int, dtype: torch.dtype) -> None:
        self.path, self.slots, self.floats, self.dtype = path, slots, floats, dtype
        self.state_bytes = floats * dtype.itemsize
        self.slot_bytes = -(-self.state_bytes // PAGE) * PAGE
        self.bytes_read = self.bytes_written = 0
        self._digests: dict[int, bytes] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        os.truncate(self._fd, slots * self.slot_bytes)

    def mapped(self) -> Tensor:
        """[slots, floats of a slot] all states as one tensor, shared with the file. Whoever writes into it
        calls `forget` afterwards.
        """
        each = self.slot_bytes // self.dtype.itemsize
        whole = torch.from_file(str(self.path), shared=True, size=self.slots * each, dtype=self.dtype)
        return whole.view(self.slots, each)

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
                raise DamageError(f"{self.path}: expert state {slot} is cut off")
            done += count
        self.bytes_read += len(view)
        known = self._digests.get(slot)
        if known is not None and known != hashlib.sha256(view).digest():
            raise DamageError(f"{self.path}: expert state {slot} is not as it was written")

    def write(self, slot: int, state: Tensor) -> None:
        """Raises OSError for a full or failing disk."""
        view = _bytes_of(state)
        begin = slot * self.slot_bytes
        done = 0
        while done < len(view):
            done += os.pwritev(self._fd, [view[done:]], begin + done)
        self.bytes_written += len(view)
        self._digests[slot] = hashlib.sha256(view).digest()

    def close(self) -> None:
        os.close(self._fd)
        self.path.unlink(missing_ok=True)


def _bytes_of(state: Tensor) -> memoryview:
    """The memory of a contiguous tensor."""
    return memoryview(cast(Any, state.numpy())).cast("B")
