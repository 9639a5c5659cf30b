"""How many bytes of messages and files a site's policy lets cross to and from a peer in an hour. What has
crossed stands in the audit log, so that an agent that was killed goes on counting where it was.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from atelier.infra.sites.audit import Audit
from atelier.infra.sites.incoming import NotTaken
from atelier.infra.sites.policy import GIGA, Policies


class Hourly:
    """The budgets of the site whose keys and policies are in a folder."""

    def __init__(self, keys: Path, audit: Audit) -> None:
        self._policies, self._audit = Policies(keys), audit
        self._waiting: dict[str, str] = {}  # by peer, why something waits
        self._under_way = Counter[str]()  # bytes by peer
        self._lock = threading.Lock()  # around what is under way

    @contextmanager
    def admitted(self, peer: str, size: int) -> Iterator[None]:
        """Around a transfer of so many bytes, which count until it ends; those that crossed are in the audit
        log by then. Raises NotTaken as `check`.
        """
        with self._lock:
            self.check(peer, size)
            self._under_way[peer] += size
        try:
            yield
        finally:
            with self._lock:
                self._under_way[peer] -= size

    def check(self, peer: str, size: int) -> None:
        """Raises NotTaken, early, while so many bytes more would be too many; the policy is read anew. Never,
        for fewer than none.
        """
        if size < 0:
            raise NotTaken(f"begins {-size} bytes behind its end")
        most = self._policies.of(peer).hourly * GIGA
        crossed = self._audit.last_hour(peer) + self._under_way[peer] if most else 0
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
