"""A fixed number of buffers for units of numbers in files: weights, moments, gradients. Threads read
requested units and write back changed ones while others compute.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor

from atelier.engine.tier.policy import Policy


class Backing(Protocol):
    """Storage of units that are in no buffer. One thread reads, one writes, never the same unit."""

    def read(self, unit: int, into: Tensor, /) -> None:
        """Raises DamageError for a unit that differs from the written one, and OSError."""

    def write(self, unit: int, state: Tensor, /) -> None:
        """Raises OSError for a full or failing disk."""


class TransferThreads:
    """A reading and a writing thread, each working in request order. `busy_s`: busy time of the busier
    one.
    """

    def __init__(self) -> None:
        self._reader, self._writer = ThreadPoolExecutor(1, "read"), ThreadPoolExecutor(1, "write")
        self._lock = threading.Lock()
        self._working, self._began = 0, 0.0
        self.busy_s = 0.0

    def read(self, act: Callable[[], None], after: Iterable["Future[None]"] = ()) -> "Future[None]":
        """`after`: writes that must be done before."""
        return self._reader.submit(self._timed, act, [each for each in after if not each.done()])

    def write(self, act: Callable[[], None]) -> "Future[None]":
        return self._writer.submit(self._timed, act)

    def _timed(self, act: Callable[[], None], after: Sequence["Future[None]"] = ()) -> None:
        wait(after)  # failures are raised to the requester of the write
        with self._lock:
            if not self._working:
                self._began = time.perf_counter()
            self._working += 1
        try:
            act()
        finally:
            with self._lock:
                self._working -= 1
                if not self._working:
                    self.busy_s += time.perf_counter() - self._began

    def close(self) -> None:
        self._reader.shutdown()
        self._writer.shutdown()


class UnitBuffers(ABC):
    """A fixed number of buffers, through which units are used."""

    @abstractmethod
    def ask(self, unit: int, *, is_new: bool = False) -> bool:
        """Start reading a unit that will be taken, unless it is there; False if no buffer is free. `is_new`:
        its stored numbers are not needed.
        """

    @abstractmethod
    def take(self, unit: int, *, is_new: bool = False) -> Tensor:
        """The buffer of a unit, once it is read, reserved until `give`. Raises errors of its read, or of the
        write of a unit that left.
        """

    @abstractmethod
    def give(self, unit: int, *, changed: bool = False) -> None:
        """End a use that `take` began."""

    @abstractmethod
    def expect(self, units: Collection[int]) -> None:
        """Of the requested units only these will be taken: the others may leave a device."""

    @abstractmethod
    def ask_no_more(self) -> None:
        """Release units that were requested but not taken."""

    @abstractmethod
    def discard(self, unit: int) -> None:
        """Do not write back this unit, whose numbers are no longer needed."""

    @abstractmethod
    def write_all(self) -> None:
        """Write back all changes; buffers keep their units."""

    @abstractmethod
    def finish(self) -> None:
        """Wait for all started reads and writes; none starts until the next request."""

    @abstractmethod
    def drop_all(self) -> None:
        """Forget all buffers, changed or not."""

    def ask_all(self, units: Iterable[int]) -> int:
        """Request as many of these, in order, as there are buffers; returns their number."""
        asked = 0
        for unit in units:
            if not self.ask(unit):
                break
            asked += 1
        return asked

    @contextmanager
    def held(self, unit: int, *, changes: bool = False, is_new: bool = False) -> Iterator[Tensor]:
        """`take` and `give`."""
        state = self.take(unit, is_new=is_new)
        try:
            yield state
        finally:
            self.give(unit, changed=changes)


def not_renewed(unit: int, state: Tensor) -> bool:
    return False


def plain_memory(numbers: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(numbers, dtype=dtype)


class Buffers(UnitBuffers):
    """`size` consecutive buffers of `floats` numbers in host memory from `memory`; `align`: alignment of the
    first, in bytes. A requested or used unit keeps its buffer; of the others, `policy` chooses which one
    leaves. A changed unit is written back; once units have to leave, this happens ahead of its turn, so that
    nothing waits for it. `renew` is called with a unit and its numbers when it is taken, and returns whether
    it changed them. `most`: most units in buffers at once; `waited_s`: waiting time for reads.
    """

    def __init__(
        self,
        backing: Backing,
        size: int,
        policy: Policy,
        worker: TransferThreads,
        *,
        floats: int,
        dtype: torch.dtype,
        memory: Callable[[int, torch.dtype], Tensor] = plain_memory,
        align: int = 1,
    ) -> None:
        self.backing, self.policy, self.worker = backing, policy, worker
        self.renew: Callable[[int, Tensor], bool] = not_renewed
        self.size = size
        room = memory(size * floats + align // dtype.itemsize, dtype)
        begin = -room.data_ptr() % align // dtype.itemsize
        self.buffers = room[begin : begin + size * floats].view(size, floats)
        self._rows = self.buffers.unbind()  # once, so that recomputation records nothing of this class
        self._free = list(range(size))
        self._place: dict[int, int] = {}  # buffer by unit
        self._ready: dict[int, Future[None]] = {}
        self._awaited: set[int] = set()
        self._used: dict[int, int] = {}  # number of current uses of a unit
        self._changed: set[int] = set()
        self._writes: list[Future[None]] = []  # writes whose result was not checked yet
        self._emptied: dict[int, Future[None]] = {}  # by buffer: its last write
        self._stored: dict[int, Future[None]] = {}  # by unit: its last write
        self.hits = self.misses = self.evictions = self.most = 0
        self.waited_s = 0.0

    def __contains__(self, unit: int) -> bool:
        """Whether it has a buffer, read or being read."""
        return unit in self._place

    @property
    def is_full(self) -> bool:
        """Whether every buffer is in use."""
        return len(self._used) == self.size

    def is_read(self, unit: int) -> bool:
        """Whether `take` would neither wait for it nor fail."""
        ready = self._ready.get(unit)
        return ready is not None and ready.done() and ready.exception() is None

    def ask(self, unit: int, *, is_new: bool = False) -> bool:
        if unit not in self._place:
            if not self._free and not self._evict():
                return False
            self.misses += 1
            place = self._place[unit] = self._free.pop()
            self.most = max(self.most, len(self._place))
            self._ready[unit] = self._fill(unit, place, is_new=is_new)
        elif unit not in self._awaited:
            self.hits += 1
        self._awaited.add(unit)
        return True

    def take(self, unit: int, *, is_new: bool = False) -> Tensor:
        while not self.ask(unit, is_new=is_new):  # earlier requests were not taken: wrong guesses
            wrong = next((other for other in self._awaited if other not in self._used), None)
            if wrong is None:
                raise RuntimeError(f"{self.size} buffers are in use at once")
            self._drop(wrong)
        self._awaited.discard(unit)
        self._used[unit] = self._used.get(unit, 0) + 1
        self.policy.used(unit)
        began = time.perf_counter()
        try:
            self._ready[unit].result()
            self.waited_s += time.perf_counter() - began
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
        if self.evictions and self._changed and not self._free and (there := self._idle):
            leaves = self.policy.victim(there)
            if leaves in self._changed:
                self._write_back(leaves)

    def expect(self, units: Collection[int]) -> None:
        """Without effect: others leave when there is no other room."""

    def ask_no_more(self) -> None:
        for unit in self._awaited - self._used.keys():
            self._drop(unit)

    def discard(self, unit: int) -> None:
        self._changed.discard(unit)
        if unit in self._place and unit not in self._used:
            self._ready[unit].exception()
            self._forget(unit)

    def write_all(self) -> None:
        for unit in sorted(self._changed):
            self._write_back(unit)
        self._check_writes(wait=True)

    def finish(self) -> None:
        wait([*self._ready.values(), *self._writes])

    def drop_all(self) -> None:
        self.finish()
        for unit in list(self._place):
            self._forget(unit)
        self._changed.clear()
        self._writes.clear()

    # inside

    def _fill(self, unit: int, place: int, *, is_new: bool) -> "Future[None]":
        """Start reading a unit into a buffer, after pending writes of the buffer and of the unit."""
        before = [self._emptied.pop(place, None), self._stored.pop(unit, None)]
        after = [each for each in before if each is not None and not each.done()]
        if not is_new:
            return self.worker.read(lambda: self.backing.read(unit, self._rows[place]), after)
        if after:
            return self.worker.read(lambda: None, after)
        ready: Future[None] = Future()
        ready.set_result(None)
        return ready

    def _write_back(self, unit: int) -> None:
        """Start writing a unit."""
        place = self._place[unit]
        self._changed.discard(unit)
        done = self.worker.write(lambda: self.backing.write(unit, self._rows[place]))
        self._emptied[place] = self._stored[unit] = done
        self._writes.append(done)

    def _check_writes(self, *, wait: bool) -> None:
        """Raise errors of writes."""
        while self._writes and (wait or self._writes[0].done()):
            self._writes.pop(0).result()

    def _evict(self) -> bool:
        if not (there := self._idle):
            return False
        self._drop(self.policy.victim(there))
        self.evictions += 1
        return True

    @property
    def _idle(self) -> list[int]:
        """Units that are neither used nor requested."""
        return [unit for unit in self._place if unit not in self._used and unit not in self._awaited]

    def _drop(self, unit: int) -> None:
        """Release a unit's buffer."""
        wait([self._ready[unit]])  # a wrong guess may still be being read
        if unit in self._changed:
            self._write_back(unit)
        self._forget(unit)

    def _forget(self, unit: int) -> None:
        self._awaited.discard(unit)
        del self._ready[unit]
        self._free.append(self._place.pop(unit))
        self.policy.left(unit)
