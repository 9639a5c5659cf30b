"""What is said of a wait for other sites that lasts. Torch-free."""

import time
from collections.abc import Callable

FIRST_S, AGAIN_S = 60.0, 600.0  # seconds of waiting until it is said, and until it is said again
WAY_OUT = "if it trains, look at what both agents say, and whether both have the same configuration and data"


class LongWait:
    """One wait; `say` gets what is waited for, after `FIRST_S` and every `AGAIN_S` after that."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._began, self._next = say, time.monotonic(), FIRST_S

    @property
    def is_due(self) -> bool:
        """Whether it has to be said."""
        return time.monotonic() - self._began >= self._next

    def say(self, what: str) -> None:
        """Say what is waited for: the site, and which of its messages."""
        waited = time.monotonic() - self._began
        self._next = waited + AGAIN_S
        self._say(f"has waited {waited:.0f} s for {what}; {WAY_OUT}")
