"""The notes of orders (infra/sites/desk.py) that an agent carries: what comes in is judged by its sender."""

import json
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator

from atelier.engine.config.base import Json, canonical, fingerprint
from atelier.engine.config.document import parse_json, parse_object
from atelier.engine.config.error import DamageError
from atelier.infra.sites.desk import (
    MOST,
    Cancellation,
    Note,
    OrderDesk,
    Reply,
    SiteOrder,
    cancellation_of,
    digest_of,
    note_of,
    text_of,
)
from atelier.infra.sites.incoming import NotTaken
from atelier.infra.sites.refusals import CompletedKeys

MOST_OPEN, MOST_KEPT = 64, 1000  # orders of a peer that have not ended; all of them
MOST_BYTES = 64 << 20  # of all orders of a peer that are kept
MOST_UNKNOWN = 64 << 10  # bytes of an order of a peer for which nothing runs here: it gets its refusal
MOST_ASKED = 1 << 20  # bytes of a request
MOST_DECLINED = 3000  # of a peer, that it is told of, for good and for now each
AGAIN_S = 10.0  # after a note that is not taken yet, before it is asked for again


class RefusedNotes:
    """The notes of a peer, by their digests, that this site has heard and does not ask for: so many that a
    request has room for them.
    """

    def __init__(self) -> None:
        self._never = CompletedKeys[str](MOST_DECLINED)
        self._early: dict[str, float] = {}  # when, of those that are not taken yet

    def __iter__(self) -> Iterator[str]:
        yield from self._never
        yield from self._early

    def __contains__(self, digest: str) -> bool:
        return digest in self._never or digest in self._early

    def never(self, digest: str) -> None:
        self._never.add(digest)

    def early(self, digest: str) -> None:
        """It is asked for again, but not before all others were heard."""
        if len(self._early) >= MOST_DECLINED:
            self._early.clear()
        self._early[digest] = time.monotonic()

    def heard_all(self) -> None:
        """The peer has no others: ask again for those that were not taken yet, after `AGAIN_S`."""
        now = time.monotonic()
        self._early = {digest: since for digest, since in self._early.items() if now - since < AGAIN_S}


class Notes:
    """The notes in the mailbox `url` of `site`; `runs_any`: whether something runs here for a peer."""

    def __init__(self, url: str, site: str, runs_any: Callable[[str], bool] = lambda peer: True) -> None:
        self._desk, self._site, self._lock = OrderDesk(url), site, threading.Lock()
        self._runs_any = runs_any

    def take(self, data: bytes, peer: str) -> Note | None:
        """Keep a note that `peer` sends; None where it, or a newer one, is here. Raises NotTaken for one that
        is not its to send, DamageError for what is none.
        """
        note = read_note(data, peer)
        if len(text_of(note)) > MOST:
            raise NotTaken(f"more than {MOST} bytes when it is written out")
        with self._lock:
            return self._taken(note, peer)

    def same(self, data: bytes, peer: str) -> Note | None:
        """The note that `peer` sends where just that one is here. Raises DamageError for what is none."""
        note = read_note(data, peer)
        if isinstance(note, Cancellation):
            return note if self._desk.is_cancelled(note.order) else None
        here = self._desk.order(note.id) if isinstance(note, SiteOrder) else self._desk.reply(note.order)
        return note if here == note else None

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
                raise NotTaken(f"the order {note.order[:16]} is none between {peer} and {self._site}")
        if isinstance(note, Reply):
            there = self._desk.reply(note.order)
            if there is not None and (there.is_last or there.number >= note.number):
                return None
        if isinstance(note, Cancellation) and self._desk.is_cancelled(note.order):
            return None
        self._desk.put(note)
        return note

    def _has_order(self, order: SiteOrder, peer: str) -> bool:
        """Whether an order is here. Raises NotTaken for one that is not taken."""
        if order.home != peer or order.site != self._site:
            raise NotTaken(f"the order is of {order.home} to {order.site}, and {peer} sends it")
        there = self._desk.order(order.id)
        if there is not None:
            if there != order:
                raise NotTaken(f"the order {order.id[:16]} is another one here")
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

    def waiting_for(
        self, peer: str, known: Container[str], asks: Container[str] | None = None
    ) -> Iterator[Note]:
        """The notes for a peer without those of which it has the digests. `asks`: only replies to these
        orders.
        """
        for kind, about in self._desk.waiting_for(peer):
            is_asked = asks is None or kind != "reply" or about.order in asks
            if is_asked and about.digest not in known:
                note = self._desk.note(kind, about)
                if note is not None:
                    yield note

    def request(self, peer: str, declined: Iterable[str]) -> bytes:
        """What asks a peer for its notes: the orders to it that have not ended, and the digests of the notes
        of open orders that are here or were declined.
        """
        known, asks = [*declined], list[str]()
        for order in self._desk.listed():
            if order.home == peer and order.site == self._site:
                known.append(order.digest)
                if self._desk.is_cancelled(order.order):
                    known.append(digest_of(cancellation_of(order)))
            elif order.site == peer and not self._desk.is_over(order.order):
                asks.append(order.order)
                reply = self._desk.about_reply(order.order)
                known += [reply.digest] if reply is not None else []
        return json.dumps({"known": known, "asks": asks}).encode()

    def asked(self, data: bytes, peer: str) -> Iterator[Note]:
        """What a peer is to get for its request. Raises DamageError for what is none."""
        found = parse_object(data[:MOST_ASKED], peer, "a request")
        known, asks = found.get("known"), found.get("asks")
        if not isinstance(known, list) or not isinstance(asks, list):
            raise DamageError(f"{peer}: a request without what it knows and asks for", place=peer)
        words = {one for one in known if isinstance(one, str)}
        return self.waiting_for(peer, words, {one for one in asks if isinstance(one, str)})


def read_note(data: bytes, peer: str) -> Note:
    """The note that `peer` sends. Raises DamageError for what is none."""
    kind = parse_object(data[: MOST_ASKED * 4], peer, "a note between sites").get("kind")
    return note_of(data, kind, peer)


def told(note: Note) -> dict[str, Json]:
    """What the audit log says of a note; of a reply the digest of what it says of states alone."""
    if isinstance(note, Reply):
        states: Json = {name: task.state for name, task in note.tasks.items()}
        digest = fingerprint([note.state, states])
        return {"kind": note.kind, "sha256": digest, "order": note.order[:16], "state": note.state}
    about: dict[str, Json] = {"kind": note.kind, "sha256": digest_of(note)}
    if isinstance(note, SiteOrder):
        return about | {"order": note.id[:16], "act": note.act, "tasks": sorted(note.tasks)}
    return about | {"order": note.order[:16]}


def listed(data: bytes, peer: str) -> list[bytes]:
    """The notes in a reply to a request for them."""
    found = parse_json(data, peer, "notes")
    return [canonical(one) for one in found if isinstance(one, dict)] if isinstance(found, list) else []
