"""Buffers on a double of a GPU that copies late. No weight is read before its copy has ended, and none is
overwritten while it is read: a missing wait fails these tests.
"""

import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from atelier.engine.tier.buffers import Buffers, TransferThreads
from atelier.engine.tier.copies import CopiesAtOnce, Event, copies_to
from atelier.engine.tier.on_device import DeviceBuffers
from atelier.engine.tier.policy import LeastRecentlyUsed
from tests.engine.tier.late_copies import Late, LateCopies, Mark

FLOATS, UNITS = 4, 9


class Kept:
    """Units in a dictionary."""

    def __init__(self) -> None:
        self.units = {unit: torch.full((FLOATS,), float(unit)) for unit in range(UNITS)}

    def read(self, unit: int, into: Tensor) -> None:
        into.copy_(self.units[unit])

    def write(self, unit: int, state: Tensor) -> None:
        self.units[unit] = state.clone()


def buffers_of(kept: Kept, host: int, device: int, copies: CopiesAtOnce) -> DeviceBuffers:
    how = {"floats": FLOATS, "dtype": torch.float32}
    return DeviceBuffers(Buffers(kept, host, LeastRecentlyUsed(), TransferThreads(), **how), device, copies)


def is_right(seed: int, copies: CopiesAtOnce) -> bool:
    """Whether drawn uses of drawn buffers give the numbers of a dictionary, at every use and at the end."""
    draw, kept = random.Random(seed), Kept()
    wanted = {unit: float(unit) for unit in range(UNITS)}
    buffers = buffers_of(kept, draw.randint(1, 4), draw.randint(1, 4), copies)
    for _ in range(60):
        if draw.random() < 0.6:
            buffers.ask_all(draw.sample(range(UNITS), draw.randint(1, 4)))
        unit, is_new, changes = draw.randrange(UNITS), draw.random() < 0.2, draw.random() < 0.5
        with buffers.held(unit, is_new=is_new, changes=changes or is_new) as numbers:
            if is_new:
                numbers.fill_(wanted[unit])
            if numbers.tolist() != [wanted[unit]] * FLOATS:
                return False
            if changes:
                numbers += 100.0
                wanted[unit] += 100.0
        if draw.random() < 0.1:
            buffers.ask_no_more()
    buffers.write_all()
    return all(kept.units[unit].tolist() == [wanted[unit]] * FLOATS for unit in range(UNITS))


@pytest.mark.parametrize("seed", range(20))
def test_drawn_uses_give_the_numbers_of_memory(seed: int) -> None:
    late = LateCopies()
    assert is_right(seed, late) and late.num > 20
    assert is_right(seed, CopiesAtOnce())


def missed(seed: int) -> bool:
    """Whether a fault went unnoticed."""
    try:
        return is_right(seed, LateCopies())
    except AssertionError as noticed:
        assert "does not wait for the computation" in str(noticed)
        return False


def test_computation_that_does_not_wait_for_its_copy_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Late, "wait", lambda self: None)
    assert not any(missed(seed) for seed in range(20))


def test_a_buffer_of_the_host_given_away_before_its_copy_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(self: DeviceBuffers) -> None:
        _, unit, is_back = self._under_way.pop(0)
        self.host.give(unit, changed=is_back)

    monkeypatch.setattr(DeviceBuffers, "_release_first", at_once)
    monkeypatch.setattr(Late, "query", lambda self: True)
    assert sum(missed(seed) for seed in range(20)) < 5  # some have room for all


@pytest.mark.parametrize("kind", [Mark, Late])
def test_a_copy_that_does_not_wait_for_what_used_its_buffers_is_noticed(
    kind: type[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = LateCopies.start

    def hasty(
        self: LateCopies, into: Tensor, source: Tensor, after: Sequence[Event], *, is_back: bool
    ) -> Event:
        others = [event for event in after if not isinstance(event, kind)]
        return start(self, into, source, others, is_back=is_back)

    monkeypatch.setattr(LateCopies, "start", hasty)
    assert sum(missed(seed) for seed in range(20)) < 5


def test_a_unit_that_is_discarded_is_not_written_back() -> None:
    kept = Kept()
    buffers = buffers_of(kept, 2, 2, LateCopies())
    with buffers.held(3, is_new=True, changes=True) as numbers:
        numbers.fill_(7.0)
    buffers.discard(3)
    buffers.write_all()
    assert kept.units[3].tolist() == [3.0] * FLOATS
    with buffers.held(3) as numbers:
        assert numbers.tolist() in ([3.0] * FLOATS, [7.0] * FLOATS)


def test_a_unit_is_copied_once_while_it_has_a_buffer_and_guesses_come_before_they_are_needed() -> None:
    late = LateCopies()
    buffers = buffers_of(Kept(), 4, 3, late)
    for unit in (0, 1, 0, 1):
        with buffers.held(unit):
            pass
    assert buffers.misses == late.num == 2 and buffers.num_back == 0
    buffers.ask(2)
    buffers.finish()  # read on the host
    buffers.ask(3)
    assert 2 in buffers._place and late.num >= 3


def test_a_unit_that_comes_again_waits_for_its_own_way_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new unit took its buffer, for which computation waits, but no copy to the device."""
    started: list[Event] = []
    start = LateCopies.start

    def noted(
        self: LateCopies, into: Tensor, source: Tensor, after: Sequence[Event], *, is_back: bool
    ) -> Event:
        started.append(start(self, into, source, after, is_back=is_back))
        return started[-1]

    monkeypatch.setattr(LateCopies, "start", noted)
    monkeypatch.setattr(Late, "wait", lambda self: None)  # computation waits, and has not come so far
    buffers = buffers_of(Kept(), 4, 2, LateCopies())
    with buffers.held(0, changes=True):
        pass
    way_back = started[-1]
    for unit in (1, 2):
        with buffers.held(unit, is_new=True):
            pass
    buffers.take(0)
    again = started[-1]
    assert isinstance(again, Late) and not again.is_back and way_back in again.after


def test_wrong_guesses_make_room_for_others_once_it_is_known_what_is_needed() -> None:
    buffers = buffers_of(Kept(), 4, 2, LateCopies())
    assert buffers.ask_all([0, 1]) == 2
    buffers.finish()
    buffers.ask(1)
    assert set(buffers._place) == {0, 1}
    buffers.ask(2)
    buffers.host.finish()
    assert not buffers._place.keys() & {2}  # no guess takes the place of another
    buffers.expect([1, 2])
    buffers.ask(2)
    buffers.host.finish()
    buffers.ask(2)
    assert set(buffers._place) == {1, 2}


def test_a_cpu_needs_no_copies() -> None:
    assert copies_to(torch.device("cpu")) is None
    assert isinstance(copies_to(torch.device("cpu"), always=True), CopiesAtOnce)
