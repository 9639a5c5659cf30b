"""Periodic "still waiting" notices for other sites. Torch-free."""

import time
from collections.abc import Callable

FIRST_S, AGAIN_S = 60.0, 600.0  # seconds until the first notice, and until the next
WAY_OUT = "if it trains, check both agents' logs, and that both sites have the same configuration and data"


class LongWait:
    """One wait. `say`: prints a notice."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._began, self._next = say, time.monotonic(), FIRST_S

    @property
    def is_due(self) -> bool:
        """Whether a notice is due."""
        return time.monotonic() - self._began >= self._next

    def say(self, what: str) -> None:
        """Print a notice. `what`: the site that is waited for, and which of its messages."""
        waited = time.monotonic() - self._began
        self._next = waited + AGAIN_S
        self._say(f"has waited {waited:.0f} s for {what}; {WAY_OUT}")
