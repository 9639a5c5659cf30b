"""A fixed number of buffers for units of numbers that lie in files: weights, or expert states. A thread of
its own reads what is asked for, and writes back what has changed, while others compute.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor

from atelier.engine.tier.policy import Policy


class Backing(Protocol):
    """Where units are when they are in no buffer. Called by one thread at a time."""

    def read(self, unit: int, into: Tensor, /) -> None:
        """Raises DamageError for a unit that is not as it was written, and OSError."""

    def write(self, unit: int, state: Tensor, /) -> None:
        """Raises OSError for a full or failing disk."""


class TransferThread:
    """The thread: what it is given is done in that order. `busy_s`: how long it has worked."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "tier")
        self.busy_s = 0.0

    def start(self, act: Callable[[], None]) -> "Future[None]":
        return self._pool.submit(self._timed, act)

    def _timed(self, act: Callable[[], None]) -> None:
        began = time.perf_counter()
        try:
            act()
        finally:
            self.busy_s += time.perf_counter() - began

    def close(self) -> None:
        self._pool.shutdown()


class Buffers:
    """`size` buffers of `floats` numbers. A unit that was asked for, or is in use, keeps its buffer; of the
    others `policy` says which one leaves, and it is written back if it has changed. `renew` is called with a
    unit and its numbers whenever it is taken, and says whether it changed them.
    """

    def __init__(
        self,
        backing: Backing,
        size: int,
        policy: Policy,
        worker: TransferThread,
        *,
        floats: int,
        dtype: torch.dtype,
        device: torch.device,
        renew: Callable[[int, Tensor], bool] = lambda unit, state: False,
    ) -> None:
        self.backing, self.policy, self.worker, self.renew = backing, policy, worker, renew
        self.size = size
        self.buffers = torch.empty(size, floats, dtype=dtype, device=device)
        self._rows = self.buffers.unbind()  # once: what recomputation records has no part of this class
        self._free = list(range(size))
        self._place: dict[int, int] = {}  # buffer by unit
        self._ready: dict[int, Future[None]] = {}
        self._awaited: set[int] = set()
        self._used: dict[int, int] = {}  # how often a unit is in use
        self._changed: set[int] = set()
        self._writes: list[Future[None]] = []  # of units that have left
        self.hits = self.misses = self.evictions = 0

    def __contains__(self, unit: int) -> bool:
        """Whether it has a buffer, read or being read."""
        return unit in self._place

    def ask(self, unit: int, *, is_new: bool = False) -> bool:
        """Begin to read a unit that will be taken, unless it is there; False when no buffer is free.
        `is_new`: whatever was written of it, it is zeros.
        """
        if unit not in self._place:
            if not self._free and not self._evict():
                return False
            self.misses += 1
            place = self._place[unit] = self._free.pop()
            self._ready[unit] = self.worker.start(lambda: self._fill(unit, place, is_new=is_new))
        elif unit not in self._awaited:
            self.hits += 1
        self._awaited.add(unit)
        return True

    def ask_all(self, units: Iterable[int]) -> int:
        """Ask for as many of these, from the first on, as there are buffers for; how many that is."""
        asked = 0
        for unit in units:
            if not self.ask(unit):
                break
            asked += 1
        return asked

    def take(self, unit: int, *, is_new: bool = False) -> Tensor:
        """The buffer of a unit, once it is read; its own until `give`. Raises what reading it raised, or
        writing what left.
        """
        while not self.ask(unit, is_new=is_new):  # what was asked for before was not taken: a wrong guess
            wrong = next((other for other in self._awaited if other not in self._used), None)
            if wrong is None:
                raise RuntimeError(f"{self.size} buffers are in use at once")
            self._drop(wrong)
        self._awaited.discard(unit)
        self._used[unit] = self._used.get(unit, 0) + 1
        self.policy.used(unit)
        try:
            self._ready[unit].result()
            self._check_writes(wait=False)
        except BaseException:
            self.give(unit)
            self._forget(unit)
            raise
        state = self._rows[self._place[unit]]
        if self.renew(unit, state):
            self._changed.add(unit)
        return state

    def give(self, unit: int, *, changed: bool = False) -> None:
        self._used[unit] -= 1
        if not self._used[unit]:
            del self._used[unit]
        if changed:
            self._changed.add(unit)

    @contextmanager
    def held(self, unit: int, *, changes: bool = False, is_new: bool = False) -> Iterator[Tensor]:
        """`take` and `give`."""
        state = self.take(unit, is_new=is_new)
        try:
            yield state
        finally:
            self.give(unit, changed=changes)

    def write_all(self) -> None:
        """Write back all that has changed; buffers keep their units."""
        for unit in sorted(self._changed):
            self._write_back(unit)
        self._check_writes(wait=True)

    def drop_all(self) -> None:
        """Forget all buffers, changed or not."""
        for ready in self._ready.values():
            ready.exception()
        for unit in list(self._place):
            self._forget(unit)
        self._changed.clear()
        self._writes.clear()

    # inside

    def _fill(self, unit: int, place: int, *, is_new: bool) -> None:
        if is_new:
            self._rows[place].zero_()
        else:
            self.backing.read(unit, self._rows[place])

    def _write_back(self, unit: int) -> None:
        """Begin to write a unit; whatever is read afterwards, into its buffer or of it, comes after that."""
        state = self._rows[self._place[unit]]
        self._changed.discard(unit)
        self._writes.append(self.worker.start(lambda: self.backing.write(unit, state)))

    def _check_writes(self, *, wait: bool) -> None:
        """Raise what writing raised."""
        while self._writes and (wait or self._writes[0].done()):
            self._writes.pop(0).result()

    def _evict(self) -> bool:
        there = [unit for unit in self._place if unit not in self._used and unit not in self._awaited]
        if not there:
            return False
        self._drop(self.policy.victim(there))
        self.evictions += 1
        return True

    def _drop(self, unit: int) -> None:
        """Take a unit's buffer away."""
        if unit in self._changed:
            self._write_back(unit)
        self._forget(unit)

    def _forget(self, unit: int) -> None:
        self._awaited.discard(unit)
        del self._ready[unit]
        self._free.append(self._place.pop(unit))
        self.policy.left(unit)
