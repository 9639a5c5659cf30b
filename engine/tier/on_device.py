"""Buffers on a device in front of buffers in host memory: units are copied in before they are needed and
copied back when they have changed, both beside computation.
"""

from collections.abc import Callable, Collection
from typing import NamedTuple

from torch import Tensor

from atelier.engine.tier.buffers import Backing, Buffers, UnitBuffers, not_renewed
from atelier.engine.tier.copies import Copies, Event


class _Copy(NamedTuple):
    """A copy under way, for which a unit's buffer on the host is reserved."""

    end: Event
    unit: int
    is_back: bool


class DeviceBuffers(UnitBuffers):
    """`size` buffers on a device for the units of `host`, whose memory is the copies'. A change is copied
    back as soon as the unit is given back, so any unit may leave at any time; of those not in use, the least
    recently used one leaves, requested ones last. `renew` as in `Buffers`, with the numbers on the device.

    What waits for what: computation for the copy into a buffer; that copy for the computation and the copy
    that used the buffer before, and for a copy of the same unit to the host; a buffer of the host for both
    copies of its unit before another unit may have it.
    """

    def __init__(
        self,
        host: Buffers,
        size: int,
        copies: Copies,
        *,
        renew: Callable[[int, Tensor], bool] = not_renewed,
    ) -> None:
        self.host, self.size, self.copies, self.renew = host, size, copies, renew
        floats = host.buffers.shape[1]
        self.buffers = copies.on_device(size * floats, host.buffers.dtype).view(size, floats)
        self._rows = self.buffers.unbind()
        self._free = list(range(size))
        self._place: dict[int, int] = {}  # row by unit, least recently used first
        self._filled: dict[int, Event] = {}  # by unit: the copy for which computation does not wait yet
        self._last: dict[int, list[Event]] = {}  # by row: its last uses, by computation and copies
        self._wanted: list[int] = []  # units that are read on the host first
        self._awaited: set[int] = set()  # requested units that were not taken yet
        self._used: dict[int, int] = {}  # number of current uses of a unit
        self._changed: set[int] = set()
        self._under_way: list[_Copy] = []
        self.misses = self.num_back = self.most = 0  # copies in, copies back, most units at once

    def __contains__(self, unit: int) -> bool:
        return unit in self._place or unit in self.host

    @property
    def backing(self) -> Backing:
        return self.host.backing

    @property
    def waited_s(self) -> float:
        """Seconds of waiting for reads of the host; waiting on the device is not measured."""
        return self.host.waited_s

    def ask(self, unit: int, *, is_new: bool = False) -> bool:
        self._release()
        if unit not in self._place and unit not in self._wanted and not is_new:
            if not self.host.ask(unit):
                return False
            self._wanted.append(unit)
        self._awaited.add(unit)
        self._advance()
        return True

    def take(self, unit: int, *, is_new: bool = False) -> Tensor:
        self._release()
        if unit not in self._place and not is_new:
            self._copy_in(unit, self._room())
        elif unit not in self._place:
            self._put(unit, row := self._room())
            for use in self._last.get(row, ()):
                use.wait()
        row = self._place[unit] = self._place.pop(unit)  # the most recently used one now
        self._expect_no_more(unit)
        self._used[unit] = self._used.get(unit, 0) + 1
        if (filled := self._filled.pop(unit, None)) is not None:
            filled.wait()
        if self.renew(unit, self._rows[row]):
            self._changed.add(unit)
        self._advance()
        return self._rows[row]

    def give(self, unit: int, *, changed: bool = False) -> None:
        if changed:
            self._changed.add(unit)
        self._used[unit] -= 1
        if self._used[unit]:
            return
        del self._used[unit]
        row = self._place[unit]
        copying = [use for use in self._last.get(row, ()) if not use.query()]  # back, an earlier change
        self._last[row] = [*copying, self.copies.record()]
        if unit in self._changed:
            self._copy_back(unit, row)
        self._release()
        self._advance()

    def expect(self, units: Collection[int]) -> None:
        self._awaited.intersection_update(units)
        self._wanted = [unit for unit in self._wanted if unit in self._awaited]

    def ask_no_more(self) -> None:
        self._wanted.clear()
        self._awaited.clear()
        self.host.ask_no_more()

    def discard(self, unit: int) -> None:
        if unit in self._place and unit not in self._used:
            self._free.append(self._leave(unit))
        # a copy to the host that is under way no longer counts as a change
        self._under_way = [
            each._replace(is_back=each.is_back and each.unit != unit) for each in self._under_way
        ]
        self.host.discard(unit)

    def write_all(self) -> None:
        self._release_all()
        self.host.write_all()

    def finish(self) -> None:
        self._release_all()
        self.host.finish()

    def drop_all(self) -> None:
        self._release_all()
        self._wanted.clear()
        for unit in list(self._place):
            self._free.append(self._leave(unit))
        self.host.drop_all()

    # inside

    def _advance(self) -> None:
        """Start copying requested units that the host has read, in order, as far as there are buffers."""
        for unit in list(self._wanted):
            if unit not in self.host:  # it made room for another one
                self._expect_no_more(unit)
            elif not self.host.is_read(unit) or (row := self._idle_row(is_guess=True)) is None:
                return
            else:
                self._copy_in(unit, row)

    def _expect_no_more(self, unit: int) -> None:
        self._awaited.discard(unit)
        if unit in self._wanted:
            self._wanted.remove(unit)

    def _room(self) -> int:
        row = self._idle_row(is_guess=False)
        if row is None:
            raise RuntimeError(f"{self.size} buffers of the device are in use at once")
        return row

    def _idle_row(self, *, is_guess: bool) -> int | None:
        """A row that nothing uses; for a guess none of a requested unit."""
        if self._free:
            return self._free.pop()
        idle = [unit for unit in self._place if unit not in self._used]
        there = [unit for unit in idle if unit not in self._awaited] or ([] if is_guess else idle)
        return self._leave(there[0]) if there else None

    def _leave(self, unit: int) -> int:
        """Forget a unit on the device; returns its row."""
        self._awaited.discard(unit)
        self._filled.pop(unit, None)
        return self._place.pop(unit)

    def _put(self, unit: int, row: int) -> None:
        self._place[unit] = row
        self.most = max(self.most, len(self._place))

    def _copy_in(self, unit: int, row: int) -> None:
        """Start copying a unit of the host into a row. Raises errors of its read."""
        try:
            source = self._on_host(unit)
        except BaseException:
            self._free.append(row)
            raise
        after = [each.end for each in self._under_way if each.unit == unit and each.is_back]
        after += self._last.get(row, ())
        end = self.copies.start(self._rows[row], source, after, is_back=False)
        self._under_way.append(_Copy(end, unit, is_back=False))
        self._filled[unit], self._last[row] = end, [end]
        self._put(unit, row)
        self.misses += 1
        if unit in self._wanted:  # it stays requested
            self._wanted.remove(unit)

    def _copy_back(self, unit: int, row: int) -> None:
        """Start copying a row to the unit's buffer on the host."""
        self._changed.discard(unit)
        into = self._on_host(unit, is_new=True)
        end = self.copies.start(into, self._rows[row], self._last[row], is_back=True)
        self._under_way.append(_Copy(end, unit, is_back=True))
        self._last[row] = [end]
        self.num_back += 1

    def _on_host(self, unit: int, *, is_new: bool = False) -> Tensor:
        """The unit's buffer on the host, reserved until its copy is released."""
        while unit not in self.host and self.host.is_full and self._under_way:
            self._release_first()
        return self.host.take(unit, is_new=is_new)

    def _release(self) -> None:
        """Give back the host's buffers of copies that have ended."""
        while self._under_way and self._under_way[0].end.query():
            self._release_first()

    def _release_all(self) -> None:
        while self._under_way:
            self._release_first()

    def _release_first(self) -> None:
        end, unit, is_back = self._under_way.pop(0)
        end.synchronize()
        self.host.give(unit, changed=is_back)


def device_buffers(
    host: Buffers, size: int, copies: Copies | None, *, renew: Callable[[int, Tensor], bool] = not_renewed
) -> Buffers | DeviceBuffers:
    """Buffers on the device in front of `host`; `host` itself, which then renews, if a CPU computes in it."""
    if copies is not None:
        return DeviceBuffers(host, size, copies, renew=renew)
    host.renew = renew
    return host
