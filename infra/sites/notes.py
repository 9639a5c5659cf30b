"""The notes of orders (infra/sites/desk.py) that an agent carries: what comes in is judged by its sender."""

import json
import threading
from collections.abc import Collection, Iterable

from atelier.engine.config.base import Json
from atelier.engine.config.document import parse_json, parse_object
from atelier.engine.config.error import DamageError
from atelier.infra.sites.desk import (
    MOST,
    Cancellation,
    Note,
    OrderDesk,
    Reply,
    SiteOrder,
    digest_of,
    note_of,
    text_of,
)
from atelier.infra.sites.incoming import NotTaken

MOST_OPEN, MOST_KEPT = 64, 1000  # orders of a peer that have not ended; all of them
MOST_ASKED = 1 << 20  # bytes of a request


class Notes:
    """The notes in the mailbox `url` of `site`."""

    def __init__(self, url: str, site: str) -> None:
        self._desk, self._site, self._lock = OrderDesk(url), site, threading.Lock()

    def take(self, data: bytes, peer: str) -> Note:
        """Keep a note that `peer` sends. Raises NotTaken for one that is not its to send, DamageError for
        what is none.
        """
        kind = parse_object(data[: MOST_ASKED * 4], peer, "a note between sites").get("kind")
        note = note_of(data, kind, peer)
        if len(text_of(note)) > MOST:
            raise NotTaken(f"more than {MOST} bytes when it is written out")
        with self._lock:
            return self._taken(note, peer)

    def _taken(self, note: Note, peer: str) -> Note:
        if isinstance(note, SiteOrder):
            self._check_order(note, peer)
        else:
            order = self._desk.order(note.order)
            if order is None:
                when = "early" if isinstance(note, Cancellation) else "never"
                raise NotTaken(f"there is no order {note.order[:16]} here", when)
            sender, reader = (order.site, order.home) if isinstance(note, Reply) else (order.home, order.site)
            if sender != peer or reader != self._site or (note.home, note.site) != (order.home, order.site):
                raise NotTaken(f"the order {note.order[:16]} is none between {peer} and {self._site}")
        if isinstance(note, Reply):
            there = self._desk.reply(note.order)
            if there is not None and (there.is_last or there.number >= note.number):
                return note  # an older one that came late
        self._desk.put(note)
        return note

    def _check_order(self, order: SiteOrder, peer: str) -> None:
        if order.home != peer or order.site != self._site:
            raise NotTaken(f"the order is of {order.home} to {order.site}, and {peer} sends it")
        there = self._desk.order(order.id)
        if there is not None:
            if there != order:
                raise NotTaken(f"the order {order.id[:16]} is another one here")
            return
        from_peer = [one for one in self._desk.orders() if one.home == peer]
        open_ones = [one for one in from_peer if not self._desk.is_over(one.id)]
        if len(open_ones) >= MOST_OPEN or len(from_peer) >= MOST_KEPT:
            raise NotTaken(f"{peer} has {len(from_peer)} orders here, {len(open_ones)} of them open", "early")

    def waiting_for(
        self, peer: str, known: Collection[str], asks: Collection[str] | None = None
    ) -> list[Note]:
        """The notes for a peer without those of which it has the digests. `asks`: only replies to these
        orders.
        """
        found = [note for note in self._desk.notes_for(peer) if digest_of(note) not in known]
        return [each for each in found if asks is None or not isinstance(each, Reply) or each.order in asks]

    def request(self, peer: str, refused: Iterable[str]) -> bytes:
        """What asks a peer for its notes: the orders to it that have not ended, and the digests of the notes
        of open orders that are here or were refused.
        """
        known, asks = [*refused], list[str]()
        for order in self._desk.orders():
            if order.home == peer and order.site == self._site:
                known.append(digest_of(order))
                if self._desk.is_cancelled(order.id):
                    known.append(digest_of(Cancellation(order=order.id, home=peer, site=self._site)))
            elif order.site == peer and not self._desk.is_over(order.id):
                asks.append(order.id)
                reply = self._desk.reply(order.id)
                known += [digest_of(reply)] if reply is not None else []
        return json.dumps({"known": known, "asks": asks}).encode()

    def asked(self, data: bytes, peer: str) -> list[Note]:
        """What a peer is to get for its request. Raises DamageError for what is none."""
        found = parse_object(data[:MOST_ASKED], peer, "a request")
        known, asks = found.get("known"), found.get("asks")
        if not isinstance(known, list) or not isinstance(asks, list):
            raise DamageError(f"{peer}: a request without what it knows and asks for")
        words = {one for one in known if isinstance(one, str)}
        return self.waiting_for(peer, words, {one for one in asks if isinstance(one, str)})


def told(note: Note) -> dict[str, Json]:
    """What the audit log says of a note."""
    about: dict[str, Json] = {"kind": note.kind, "sha256": digest_of(note)}
    if isinstance(note, SiteOrder):
        return about | {"order": note.id[:16], "act": note.act, "tasks": sorted(note.tasks)}
    return about | {"order": note.order[:16]} | ({"state": note.state} if isinstance(note, Reply) else {})


def listed(data: bytes, peer: str) -> list[bytes]:
    """The notes in an reply to a request for them."""
    found = parse_json(data, peer, "notes")
    return [one.encode() for one in found if isinstance(one, str)] if isinstance(found, list) else []
