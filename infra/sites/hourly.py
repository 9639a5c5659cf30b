"""Limit the bytes of messages and files to and from a peer in an hour, by a site's policy. Complete transfers
are counted from the audit log, so the count survives a kill of the agent; those that broke off or were
dropped are counted in memory. Also limit the rate at which an agent sends.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from atelier.infra.sites.audit import Audit
from atelier.infra.sites.incoming import NotTaken
from atelier.infra.sites.last_hour import LastHour
from atelier.infra.sites.policy import GIGA, Policies

Counted = Callable[[Iterable[bytes]], Iterator[bytes]]  # counts blocks that pass
PIECE = 1 << 16  # bytes sent at once under a limit of the rate
MEGA, BITS = 1e6, 8


class Hourly:
    """The hourly budgets of the site with these keys and policies."""

    def __init__(self, keys: Path, audit: Audit) -> None:
        self._policies, self._audit = Policies(keys), audit
        self._waiting: dict[str, str] = {}  # by peer, the reason of a wait
        self._under_way = Counter[str]()  # bytes by peer
        self._broken = LastHour()  # bytes that the audit log does not count
        self._lock = threading.Lock()  # around both

    @contextmanager
    def admitted(self, peer: str, size: int, before: int = 0) -> Iterator[Counted]:
        """Reserve `size` bytes during a transfer. Then the bytes that crossed are in the audit log or, if it
        broke off, were counted by the function that this yields. `before`: bytes of earlier transfers of the
        same body, which the log counts with these. Raises NotTaken as `check`.
        """
        moved, is_whole = 0, False

        def counted(blocks: Iterable[bytes]) -> Iterator[bytes]:
            nonlocal moved
            for block in blocks:
                moved += len(block)
                yield block

        with self._lock:
            self.check(peer, size)
            self._under_way[peer] += size
        try:
            yield counted
            is_whole = True
        finally:
            with self._lock:
                self._under_way[peer] -= size
                if not is_whole:
                    self._broken.add(peer, moved)
                elif moved:
                    self._broken.add(peer, -max(0, min(before, self._broken.of(peer))))

    def check(self, peer: str, size: int) -> None:
        """Raises NotTaken (early) while `size` more bytes exceed the budget, and (never) for a negative
        `size`. Reads the policy again.
        """
        if size < 0:
            raise NotTaken(f"begins {-size} bytes after its end")
        most = self._policies.of(peer).hourly * GIGA
        crossed = self._audit.last_hour(peer) + self._broken.of(peer) + self._under_way[peer] if most else 0
        if not most or crossed + size <= most:
            self._waiting.pop(peer, None)
            return
        self._waiting[peer] = (
            f"{_mega(size)} have to wait: {_mega(crossed)} of {_mega(most)} have crossed to and from {peer}"
            f" in the last hour; atelier site allow {peer} --hourly <GB> lets more cross"
        )
        raise NotTaken(self._waiting[peer], "early")

    def waits(self, peer: str) -> str:
        """Why an item from or to a peer waits; '' = none waits."""
        return self._waiting.get(peer, "")


def _mega(size: float) -> str:
    return f"{size / 1e6:.3g} MB"


class SendLimit:
    """A limit of the rate at which an agent sends. `mbps`: most Mbit/s of bodies to all peers; 0 = any."""

    def __init__(self, mbps: float = 0.0) -> None:
        self._rate, self._free = mbps * MEGA / BITS, 0.0
        self._lock = threading.Lock()

    def paced(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """The bytes of `blocks`, each piece when the ones before it have had their time."""
        for block in blocks:
            if not self._rate:
                yield block
                continue
            for begin in range(0, len(block), PIECE):
                piece = block[begin : begin + PIECE]
                with self._lock:
                    wait = self._free - time.monotonic()
                    self._free = time.monotonic() + max(0.0, wait) + len(piece) / self._rate
                time.sleep(max(0.0, wait))
                yield piece
