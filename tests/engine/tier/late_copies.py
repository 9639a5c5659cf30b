"""A double of a GPU: it makes a copy only when it is waited for, and fills its target with NaN before."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from atelier.engine.tier.copies import CopiesAtOnce, Event


@dataclass
class Mark(Event):
    """The computation until the time `seen`, which a CPU has done when it returns."""

    seen: int

    def wait(self) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True


@dataclass(eq=False)
class Late(Event):
    """A copy that happens when somebody waits for it. `seen`: the computation for which it waits."""

    owner: "LateCopies"
    into: Tensor
    source: Tensor
    after: Sequence[Event]
    is_back: bool
    seen: int = 0
    is_done: bool = field(default=False)

    def synchronize(self) -> None:
        queue = self.owner.queues[self.is_back]
        while not self.is_done:  # copies of one direction run in order
            queue.pop(0).run()

    def run(self) -> None:
        self.is_done = True
        for event in self.after:
            event.synchronize()
        self.into.copy_(self.source)

    def wait(self) -> None:
        self.synchronize()
        self.owner.used[self.row] = self.owner.clock

    def query(self) -> bool:
        return self.is_done

    @property
    def row(self) -> int:
        """The buffer of the device."""
        return (self.source if self.is_back else self.into).data_ptr()


class LateCopies(CopiesAtOnce):
    """Fills the target of a copy with NaN until the copy happens, unless a copy that must happen before still
    reads it. Raises AssertionError for a copy from or to a buffer with which a computation may not be done,
    because a CPU cannot play that.
    """

    def __init__(self) -> None:
        self.queues: dict[bool, list[Late]] = {False: [], True: []}
        self.used: dict[int, int] = {}  # by row: the last time that computation began to use it
        self.clock = self.num = 0

    def record(self) -> Event:
        self.clock += 1
        return Mark(self.clock)

    def start(self, into: Tensor, source: Tensor, after: Sequence[Event], *, is_back: bool) -> Event:
        seen = max((event.seen for event in after if isinstance(event, Mark | Late)), default=0)
        copy = Late(self, into, source, after, is_back, seen)
        if self.used.get(copy.row, -1) >= seen:
            raise AssertionError("a copy does not wait for the computation with its buffer")
        if not any(each.source.data_ptr() == into.data_ptr() for each in self.queues[not is_back]):
            into.fill_(math.nan)
        self.queues[is_back].append(copy)
        self.num += 1
        return copy
