"""How many bytes of messages and files a site's policy lets cross to and from a peer in an hour. What has
crossed whole stands in the audit log, so that an agent that was killed goes on counting where it was; what
broke off, or was dropped when it had come, this agent remembers.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from atelier.infra.sites.audit import Audit
from atelier.infra.sites.incoming import NotTaken
from atelier.infra.sites.last_hour import LastHour
from atelier.infra.sites.policy import GIGA, Policies

Counted = Callable[[Iterable[bytes]], Iterator[bytes]]  # passes blocks on


class Hourly:
    """The budgets of the site whose keys and policies are in a folder."""

    def __init__(self, keys: Path, audit: Audit) -> None:
        self._policies, self._audit = Policies(keys), audit
        self._waiting: dict[str, str] = {}  # by peer, why something waits
        self._under_way = Counter[str]()  # bytes by peer
        self._broken = LastHour()  # bytes that the audit log does not count
        self._lock = threading.Lock()  # around both

    @contextmanager
    def admitted(self, peer: str, size: int, before: int = 0) -> Iterator[Counted]:
        """Around a transfer of so many bytes, which count until it ends; those that crossed are in the audit
        log by then, or count because what is given has counted them. `before`: bytes that came in earlier
        transfers, which the log counts with these. Raises NotTaken as `check`.
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
        """Raises NotTaken, early, while so many bytes more would be too many; the policy is read anew. Never,
        for fewer than none.
        """
        if size < 0:
            raise NotTaken(f"begins {-size} bytes behind its end")
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
        """Why something from or to a peer waits; '' when nothing does."""
        return self._waiting.get(peer, "")


def _mega(size: float) -> str:
    return f"{size / 1e6:.3g} MB"
