"""A fixed number of buffers for expert states, between a file and who computes with them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from atelier.engine.config.error import ConfigError
from atelier.engine.tier.policy import Policy
from atelier.engine.tier.state_file import StateFile


class StateCache:
    """Buffers for `size` states of a file. A state that is changed is written back when its buffer is given
    to another one. `renew` is called with a slot and its state whenever one is asked for, and says whether it
    changed it.
    """

    def __init__(
        self, file: StateFile, size: int, policy: Policy, renew: Callable[[int, Tensor], bool]
    ) -> None:
        if size < 1:
            raise ConfigError("parallel.tiers.host_gb", "has no room for one expert state", "give it more")
        self.file, self.policy, self.renew = file, policy, renew
        self.size = min(size, file.slots)
        self.buffers = torch.empty(self.size, file.floats, dtype=file.dtype)
        self._place: dict[int, int] = {}  # buffer by slot
        self._free = list(range(self.size))
        self._held: dict[int, int] = {}  # how often a slot is in use
        self._changed: set[int] = set()
        self.hits = self.misses = self.evictions = 0

    @contextmanager
    def held(self, slot: int, *, changes: bool = False) -> Iterator[Tensor]:
        """The state of a slot, [floats], whose buffer is its own until the end."""
        place = self._brought(slot)
        self._held[slot] = self._held.get(slot, 0) + 1
        try:
            yield self.buffers[place]
        finally:
            self._held[slot] -= 1
            if not self._held[slot]:
                del self._held[slot]
            if changes:
                self._changed.add(slot)

    def _brought(self, slot: int) -> int:
        place = self._place.get(slot)
        if place is None:
            self.misses += 1
            place = self._read(slot)
        else:
            self.hits += 1
        self.policy.used(slot)
        if self.renew(slot, self.buffers[place]):
            self._changed.add(slot)
        return place

    def _read(self, slot: int) -> int:
        if not self._free:
            self._evict()
        place = self._free.pop()
        try:
            self.file.read(slot, self.buffers[place])
        except BaseException:
            self._free.append(place)
            raise
        self._place[slot] = place
        return place

    def _evict(self) -> None:
        there = [slot for slot in self._place if slot not in self._held]
        if not there:
            raise ConfigError(
                "parallel.tiers.host_gb",
                f"has room for {self.size} expert states, all of which are in use at once",
                "give it more",
            )
        slot = self.policy.victim(there)
        self._write_back(slot)
        self._free.append(self._place.pop(slot))
        self.policy.left(slot)
        self.evictions += 1

    def _write_back(self, slot: int) -> None:
        if slot in self._changed:
            self.file.write(slot, self.buffers[self._place[slot]])
            self._changed.discard(slot)

    def write_all(self) -> None:
        """Write back all that is changed; buffers keep their states."""
        for slot in sorted(self._changed):
            self._write_back(slot)

    def drop(self) -> None:
        """Forget all buffers, changed or not: the file was filled anew."""
        self._free = list(range(self.size))
        for slot in self._place:
            self.policy.left(slot)
        self._place.clear()
        self._changed.clear()
