"""Buffers between memory and slow files: no transfer in flight lands in a buffer that is used again."""

import threading

import torch
from torch import Tensor

from atelier.engine.tier.buffers import Buffers, TransferThreads
from atelier.engine.tier.policy import LeastRecentlyUsed

FLOATS = 4


class Slow:
    """Units in a dictionary; reads and writes wait until they may go on."""

    def __init__(self, units: int) -> None:
        self.kept = {unit: torch.full((FLOATS,), float(unit)) for unit in range(units)}
        self.may_read, self.may_write = threading.Event(), threading.Event()
        self.written: list[int] = []

    def read(self, unit: int, into: Tensor) -> None:
        assert self.may_read.wait(30)
        into.copy_(self.kept[unit])

    def write(self, unit: int, state: Tensor) -> None:
        assert self.may_write.wait(30)
        self.kept[unit] = state.clone()
        self.written.append(unit)


def buffers_of(backing: Slow, size: int) -> Buffers:
    threads = TransferThreads()
    return Buffers(backing, size, LeastRecentlyUsed(), threads, floats=FLOATS, dtype=torch.float32)


def soon(event: threading.Event) -> None:
    threading.Timer(0.05, event.set).start()


def test_a_wrong_guess_that_is_still_read_does_not_land_on_new_numbers() -> None:
    backing = Slow(3)
    buffers = buffers_of(backing, 1)
    buffers.ask(0)
    soon(backing.may_read)
    new = buffers.take(1, is_new=True)
    new.fill_(7.0)
    buffers.finish()
    assert new.tolist() == [7.0] * FLOATS


def test_what_leaves_is_written_as_it_was() -> None:
    backing = Slow(4)
    backing.may_read.set()
    buffers = buffers_of(backing, 1)
    with buffers.held(0, changes=True) as numbers:
        numbers.fill_(5.0)
    buffers.ask(2)  # 0 leaves, its write waits, and this read for it
    soon(backing.may_write)
    with buffers.held(1, changes=True, is_new=True) as numbers:
        numbers.fill_(6.0)
    with buffers.held(0) as numbers:
        assert numbers.tolist() == [5.0] * FLOATS
    buffers.write_all()
    assert backing.kept[0].tolist() == [5.0] * FLOATS and backing.kept[1].tolist() == [6.0] * FLOATS


def test_what_fits_is_not_written_before_it_is_asked() -> None:
    backing = Slow(3)
    backing.may_read.set()
    backing.may_write.set()
    buffers = buffers_of(backing, 3)
    for unit in (0, 1, 2, 0):
        with buffers.held(unit, changes=True) as numbers:
            numbers += 1.0
    buffers.finish()
    assert not backing.written
    buffers.write_all()
    assert sorted(backing.written) == [0, 1, 2] and backing.kept[0].tolist() == [2.0] * FLOATS


def test_once_units_leave_the_next_one_is_written_before_its_turn() -> None:
    backing = Slow(4)
    backing.may_read.set()
    backing.may_write.set()
    buffers = buffers_of(backing, 2)
    for unit in (0, 1, 2):
        with buffers.held(unit, changes=True):
            pass
    buffers.finish()
    assert backing.written == [0, 1]
