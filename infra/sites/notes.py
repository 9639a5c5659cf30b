"""Notes of orders (infra/sites/desk.py), an item each. Inbound notes are judged by their sender."""

import threading
from collections.abc import Callable, Iterator

from atelier.engine.config.base import Json, fingerprint
from atelier.engine.config.document import parse_object
from atelier.infra.sites.audit import Audit
from atelier.infra.sites.desk import (
    MOST,
    Cancellation,
    Note,
    OrderDesk,
    Reply,
    SiteOrder,
    digest_of,
    note_of,
    order_id,
    text_of,
)
from atelier.infra.sites.incoming import Arrival, NotTaken
from atelier.infra.sites.kinds import IsDue, Item, ItemKind
from atelier.infra.sites.note_cache import NoteSummary

MOST_OPEN, MOST_KEPT = 64, 1000  # orders of a peer that have not ended; all its orders
MOST_BYTES = 64 << 20  # of all orders of a peer that are kept
MOST_UNKNOWN = 64 << 10  # bytes of an order of a peer for which no task may run: enough to refuse it


class Notes(ItemKind[Note]):
    """The notes in the mailbox `url` of `site`. `runs_any`: whether any task may run here for a peer."""

    name = "note"
    early_s = 1.0
    is_kept = True

    def __init__(
        self, url: str, site: str, audit: Audit, runs_any: Callable[[str], bool] = lambda peer: True
    ) -> None:
        super().__init__(audit)
        self._desk, self._site, self._lock = OrderDesk(url), site, threading.Lock()
        self._runs_any = runs_any

    def item(self, data: bytes, peer: str) -> Item[Note]:
        return self._item(read_note(data, peer))

    def _item(self, note: Note) -> Item[Note]:
        about, number = told(note), order_id(note)
        name = f"the {note.kind} {number[:16]}"
        return Item(digest_of(note), note, text_of(note), about, name, f"{note.kind} {number}")

    def groups(self, peer: str, is_due: IsDue) -> Iterator[Iterator[Item[Note]]]:
        for kind, about in self._desk.waiting_for(peer):
            if is_due(about.digest):
                yield self._of(kind, about)

    def _of(self, kind: str, about: NoteSummary) -> Iterator[Item[Note]]:
        note = self._desk.note(kind, about)
        if note is not None:
            yield self._item(note)

    def note(self, what: str, peer: str, item: Item[Note], *, is_new: bool) -> None:
        """As in ItemKind, with one line for each state of an order's tasks, not for each reply."""
        super().note(what, peer, item, is_new=is_new and not isinstance(item.head, Reply))

    def take(self, item: Item[Note], arrival: Arrival) -> Json:
        """Keep a note of a peer, unless it or a newer one is here. Raises NotTaken for one that it may not
        send.
        """
        self.audit.check(arrival.peer, "reply")
        if len(item.text) > MOST:
            raise NotTaken(f"more than {MOST} bytes when it is written out")
        with self._lock:
            taken = self._taken(item.head, arrival.peer)
        if taken is not None or self._is_here(item.head):
            arrival.note(taken is not None)
        return None

    def _is_here(self, note: Note) -> bool:
        """Whether exactly that note is here."""
        if isinstance(note, Cancellation):
            return self._desk.is_cancelled(note.order)
        here = self._desk.order(note.id) if isinstance(note, SiteOrder) else self._desk.reply(note.order)
        return here == note

    def _taken(self, note: Note, peer: str) -> Note | None:
        if isinstance(note, SiteOrder):
            if self._has_order(note, peer):
                return None
        else:
            order = self._desk.order(note.order)
            if order is None:
                when = "early" if isinstance(note, Cancellation) else "never"
                raise NotTaken(f"there is no order {note.order[:16]} here", when)
            sender, reader = (order.site, order.home) if isinstance(note, Reply) else (order.home, order.site)
            if sender != peer or reader != self._site or (note.home, note.site) != (order.home, order.site):
                raise NotTaken(f"the order {note.order[:16]} is not an order between {peer} and {self._site}")
        if isinstance(note, Reply):
            there = self._desk.reply(note.order)
            if there is not None and (there.is_last or there.number >= note.number):
                return None
        if isinstance(note, Cancellation) and self._desk.is_cancelled(note.order):
            return None
        self._desk.put(note)
        return note

    def _has_order(self, order: SiteOrder, peer: str) -> bool:
        """Whether an order is here. Raises NotTaken for one that is refused."""
        if order.home != peer or order.site != self._site:
            raise NotTaken(f"the order is of {order.home} to {order.site}, and {peer} sends it")
        there = self._desk.order(order.id)
        if there is not None:
            if there != order:
                raise NotTaken(f"the order {order.id[:16]} differs from the one here")
            return True
        size = len(text_of(order))
        if size > MOST_UNKNOWN and not self._runs_any(peer):
            raise NotTaken(
                f"the order {order.id[:16]} has {size} bytes, at most {MOST_UNKNOWN} are taken where no task"
                f" runs for {peer}; at {self._site}: atelier site allow {peer} --tasks <tasks>"
            )
        from_peer = [one for one in self._desk.listed() if one.home == peer]
        num_open = sum(not self._desk.is_over(one.order) for one in from_peer)
        if num_open >= MOST_OPEN or len(from_peer) >= MOST_KEPT:
            raise NotTaken(f"{peer} has {len(from_peer)} orders here, {num_open} of them open", "early")
        kept = sum(one.bytes for one in from_peer)
        if kept + size > MOST_BYTES:
            raise NotTaken(
                f"{kept} bytes of orders of {peer} are kept here, {size} more would be above {MOST_BYTES};"
                " those that ended are removed after a week",
                "early",
            )
        return False


def read_note(data: bytes, peer: str) -> Note:
    """Parse a note from `peer`. Raises DamageError for an invalid one."""
    return note_of(data, parse_object(data, peer, "a note between sites").get("kind"), peer)


def told(note: Note) -> dict[str, Json]:
    """The line of a note in the audit log. The digest of a reply covers only its states."""
    if isinstance(note, Reply):
        states: Json = {name: task.state for name, task in note.tasks.items()}
        digest = fingerprint([note.state, states])
        return {"kind": note.kind, "sha256": digest, "order": note.order[:16], "state": note.state}
    about: dict[str, Json] = {"kind": note.kind, "sha256": digest_of(note)}
    if isinstance(note, SiteOrder):
        return about | {"order": note.id[:16], "act": note.act, "tasks": sorted(note.tasks)}
    return about | {"order": note.order[:16]}
