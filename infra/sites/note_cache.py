"""In-memory cache of the notes of a desk (infra/sites/desk.py): a summary of each, and the most recently used
notes as far as there is room.
"""

import threading
from collections.abc import Collection
from dataclasses import dataclass
from typing import Generic, TypeVar

from atelier.engine.io.storage import Stamp

MOST_HELD = (
    2 << 20
)  # bytes of the texts of notes that are held; as objects they are some thirty times as many

Held = TypeVar("Held")


@dataclass(frozen=True)
class NoteSummary:
    """Summary of a note: its order, its two sites, digest and bytes of its text, and whether it ends the
    order.
    """

    order: str
    home: str
    site: str
    digest: str
    bytes: int
    is_last: bool


class NoteCache(Generic[Held]):
    """Notes by place; safe to use from several threads."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Stamp, NoteSummary]] = {}
        self._held: dict[str, tuple[Stamp, int, Held]] = {}  # the most recently used is the last
        self._bytes = 0  # of the held notes
        self._lock = threading.Lock()

    def about(self, place: str, stamp: Stamp) -> NoteSummary | None:
        """The summary of a note; None if it is unknown or has changed."""
        known = self._known.get(place)
        return known[1] if known is not None and known[0] == stamp else None

    def note(self, place: str, stamp: Stamp) -> Held | None:
        """A held note, else None."""
        with self._lock:
            held = self._held.get(place)
            if held is None or held[0] != stamp:
                return None
            self._held[place] = self._held.pop(place)
            return held[2]

    def keep(self, place: str, stamp: Stamp, about: NoteSummary, note: Held) -> None:
        """Hold a note that was read; the least recently used ones are dropped for it."""
        with self._lock:
            self._drop(place)
            self._known[place] = (stamp, about)
            self._held[place] = (stamp, about.bytes, note)
            self._bytes += about.bytes
            while len(self._held) > 1 and self._bytes > MOST_HELD:
                self._drop(next(iter(self._held)))

    def drop(self, *places: str) -> None:
        """Drop the notes at these places; their summaries stay."""
        with self._lock:
            for place in places:
                self._drop(place)

    def forget_all_but(self, places: Collection[str]) -> None:
        """Forget all notes outside these folders."""
        with self._lock:
            for place in [one for one in self._known if one.rpartition("/")[0] not in places]:
                del self._known[place]
                self._drop(place)

    def forget(self, place: str) -> None:
        with self._lock:
            self._known.pop(place, None)
            self._drop(place)

    def _drop(self, place: str) -> None:
        held = self._held.pop(place, None)
        self._bytes -= held[1] if held is not None else 0
