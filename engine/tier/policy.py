"""Policies that choose which state leaves a full cache."""

from collections.abc import Callable, Sequence
from typing import Protocol


class Policy(Protocol):
    def used(self, slot: int) -> None:
        """Called when a slot is used and in the cache."""

    def left(self, slot: int) -> None:
        """Called when a slot has left the cache."""

    def victim(self, there: Sequence[int]) -> int:
        """The slot that should leave, of those in the cache."""
        ...


class LeastOftenUsed:
    """Fewest hits, which decay: SE-MoE's rule (2205.10034, algorithm 2). As printed, only a slot with at
    least `threshold` hits may leave; if there is none, the slot with fewest hits leaves here.
    """

    def __init__(self, threshold: float = 0.0, decay: float = 0.5, every: int = 1000) -> None:
        self.threshold, self.decay, self.every = threshold, decay, every
        self.hits: dict[int, float] = {}
        self.asked = 0

    def used(self, slot: int) -> None:
        self.hits[slot] = self.hits.get(slot, 0.0) + 1.0
        self.asked += 1
        if self.asked % self.every == 0:
            self.hits = {slot: hits * self.decay for slot, hits in self.hits.items()}

    def left(self, slot: int) -> None:
        self.hits.pop(slot, None)

    def victim(self, there: Sequence[int]) -> int:
        frequent = [slot for slot in there if self.hits.get(slot, 0.0) >= self.threshold]
        return min(frequent or there, key=lambda slot: (self.hits.get(slot, 0.0), slot))


class LeastRecentlyUsed:
    def __init__(self) -> None:
        self.order: dict[int, None] = {}

    def used(self, slot: int) -> None:
        self.order.pop(slot, None)
        self.order[slot] = None

    def left(self, slot: int) -> None:
        self.order.pop(slot, None)

    def victim(self, there: Sequence[int]) -> int:
        among = set(there)
        return next(slot for slot in self.order if slot in among)


class FirstStay:
    """The newest slot leaves; the first ones stay."""

    def __init__(self) -> None:
        self.order: dict[int, None] = {}

    def used(self, slot: int) -> None:
        self.order.setdefault(slot)

    def left(self, slot: int) -> None:
        self.order.pop(slot, None)

    def victim(self, there: Sequence[int]) -> int:
        among = set(there)
        return next(slot for slot in reversed(self.order) if slot in among)


class FarthestOnWay:
    """The slot needed last leaves, if all slots are needed in order, forth and back as in forward and
    backward passes.
    """

    def __init__(self) -> None:
        self.last, self.is_back = -1, False

    def used(self, slot: int) -> None:
        if slot != self.last:
            self.is_back = slot < self.last
        self.last = slot

    def left(self, slot: int) -> None:
        pass

    def victim(self, there: Sequence[int]) -> int:
        passed = [slot for slot in there if (slot >= self.last if self.is_back else slot <= self.last)]
        first, last = min(passed or there), max(passed or there)
        return last if self.is_back == bool(passed) else first


POLICIES: dict[str, Callable[[], Policy]] = {
    "lfu": LeastOftenUsed, "lru": LeastRecentlyUsed, "static": FirstStay, "order": FarthestOnWay,
}  # fmt: skip
