"""Messages of trainings, an item each: contributions, teachers' lessons and the progress of their readers."""

import hashlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from atelier.engine.config.base import Json, canonical
from atelier.engine.config.document import parse_as
from atelier.engine.extensions.sites.mailbox import Mailbox
from atelier.engine.extensions.sites.messages import BODY, Contribution, Message, ReaderProgress, head_of
from atelier.engine.extensions.sites.rates import tell_rate
from atelier.engine.io.storage import local_path, stamp_of
from atelier.infra.sites.audit import Audit
from atelier.infra.sites.incoming import Arrival, Incoming, NotTaken
from atelier.infra.sites.kinds import IsDue, Item, ItemKind

OFFER_AGAIN_S, MOST_ASKED = 30.0, 3  # how often, and how many, retained messages are offered again
AGAIN = "+"  # ends the key of such a message
PROGRESS = "a report of progress"


class Messages(ItemKind[Message]):
    """The messages in a mailbox."""

    name = "message"

    def __init__(self, incoming: Incoming, audit: Audit, is_trusted: Callable[[str], bool]) -> None:
        super().__init__(audit)
        self._url, self._site, self._incoming = incoming.url, incoming.site, incoming
        self._is_trusted = is_trusted
        self._sent: dict[tuple[str, str], int] = {}  # the last round by peer and trajectory
        self._offered: dict[tuple[str, str], float] = {}  # when some were offered again, by the same
        self._asked: dict[tuple[str, str], int] = {}  # the last round of those, by the same

    def item(self, data: bytes, peer: str) -> Item[Message]:
        return self._item(head_of(data, peer))

    def _item(self, head: Message, end: str = "") -> Item[Message]:
        training = head.trajectory[:16]
        known = head.text + str(stamp_of(self._body(head))).encode()
        return Item(
            f"{hashlib.sha256(known).hexdigest()}{end}",
            head,
            head.text,
            {
                "kind": head.kind,
                "trajectory": training,
                "round": head.round,
                "bytes": head.body.bytes,
                "sha256": head.body.sha256,
            },
            f"round {head.round} of {training}",
            head.trajectory,
            head.body.bytes,
            is_again=bool(end),
        )

    def _body(self, head: Message) -> Path:
        return local_path(Mailbox(self._url, head.trajectory).folder(head.round, head.site)) / BODY

    def groups(self, peer: str, is_due: IsDue) -> Iterator[Iterator[Item[Message]]]:
        for about in self._incoming.trainings(peer):
            yield self._of(Mailbox(self._url, about.trajectory), peer)

    def _of(self, box: Mailbox, peer: str) -> Iterator[Item[Message]]:
        """The messages of a training that a peer lacks, after a few retained ones that it may have lost."""
        yield from self._again(box, peer)
        last, reader = self._sent.get((peer, box.trajectory), 0), self._incoming.progress(box, peer)
        safe = reader.safe if reader is not None else 0
        for head in box.sent(self._site, last):
            if not isinstance(head, Contribution) and last and head.round > max(last, safe) + 1:
                break  # the messages between are made again
            last = head.round
            yield self._item(head)

    def _again(self, box: Mailbox, peer: str) -> Iterator[Item[Message]]:
        """Every `OFFER_AGAIN_S`, re-offer a few retained messages, the oldest and others in turn. All from
        the first one that the peer lacks are sent again.
        """
        key, now = (peer, box.trajectory), time.monotonic()
        if now - self._offered.setdefault(key, now) < OFFER_AGAIN_S:
            return
        reader = self._incoming.progress(box, peer)
        safe, sent = reader.safe if reader is not None else 0, self._sent.get(key, 0)
        kept = [number for number in box.rounds() if safe < number <= sent]
        later = [number for number in kept if number > self._asked.get(key, 0)] or kept
        self._asked[key] = max(later[:MOST_ASKED], default=0)
        self._offered[key] = now
        for number in sorted({*kept[:1], *later[:MOST_ASKED]}):
            head = box.read(number, self._site)
            if head is not None and self._sent.get(key) == sent:
                yield self._item(head, AGAIN)

    def settled(self, peer: str, item: Item[Message], size: int = 0, seconds: float = 0.0) -> None:
        key, number = (peer, item.head.trajectory), item.head.round
        if not item.is_again:
            self._sent[key] = number
        elif size:  # the peer had lost it, and perhaps later ones
            self._sent[key] = min(number, self._sent.get(key, number))
        if size and isinstance(item.head, Contribution):
            tell_rate(self._url, peer, size, seconds)

    def begins_anew(self, peer: str, trajectory: str) -> None:
        """Send a reader all messages again: it has started again."""
        self._sent.pop((peer, trajectory), None)

    def path(self, item: Item[Message], peer: str) -> Path:
        head, box = item.head, Mailbox(self._url, item.head.trajectory)
        about = box.about(self._site)
        if about is None or peer not in about.sites:
            raise NotTaken("no such message")
        if box.read(head.round, self._site) != head:
            raise NotTaken("no such message", "over")
        return self._body(head)

    def offset(self, item: Item[Message], peer: str) -> int | None:
        return self._incoming.offset(item.head, peer)

    def take(self, item: Item[Message], arrival: Arrival) -> Json:
        self._incoming.take(item.head, arrival, lambda: self._is_trusted(arrival.peer))
        return None


class ProgressItems(ItemKind[ReaderProgress]):
    """Reports of progress in a mailbox. `begins_anew` is called with a peer and a trajectory when the peer
    has begun again.
    """

    name = "progress"

    def __init__(self, incoming: Incoming, audit: Audit, begins_anew: Callable[[str, str], None]) -> None:
        super().__init__(audit)
        self._url, self._site, self._incoming = incoming.url, incoming.site, incoming
        self._begins_anew = begins_anew
        self._told: dict[tuple[str, str], ReaderProgress] = {}  # by peer and trajectory
        self._noted: dict[tuple[str, str], tuple[int, int]] = {}  # begun and safe, by the same

    def item(self, data: bytes, peer: str) -> Item[ReaderProgress]:
        return self._item(parse_as(ReaderProgress, data, peer, PROGRESS))

    def _item(self, said: ReaderProgress) -> Item[ReaderProgress]:
        text, training = canonical(said.model_dump(mode="json", by_alias=True)), said.trajectory[:16]
        about: dict[str, Json] = {"kind": said.kind, "trajectory": training}
        return Item(
            hashlib.sha256(text).hexdigest(),
            said,
            text,
            about | {"step": said.step, "safe": said.safe},
            f"progress in {training}",
            said.trajectory,
        )

    def groups(self, peer: str, is_due: IsDue) -> Iterator[Iterator[Item[ReaderProgress]]]:
        for about in self._incoming.trainings(peer):
            if about.teacher == peer:
                yield self._of(about.trajectory, peer)

    def _of(self, trajectory: str, peer: str) -> Iterator[Item[ReaderProgress]]:
        said = Mailbox(self._url, trajectory).progress(self._site)
        if said is not None and self._told.get((peer, trajectory)) != said:
            yield self._item(said)

    def settled(self, peer: str, item: Item[ReaderProgress], size: int = 0, seconds: float = 0.0) -> None:
        self._told[peer, item.head.trajectory] = item.head
        self._incoming.forget(item.head)

    def note(self, what: str, peer: str, item: Item[ReaderProgress], *, is_new: bool) -> None:
        """As in ItemKind, but only after new checkpoints."""
        key, now = (peer, item.head.trajectory), (item.head.begun, item.head.safe)
        if self._noted.get(key) != now:
            self._noted[key] = now
            super().note(what, peer, item, is_new=True)

    def take(self, item: Item[ReaderProgress], arrival: Arrival) -> Json:
        peer, said, key = arrival.peer, item.head, (arrival.peer, item.head.trajectory)
        self.audit.check(peer, said.kind)
        before = self._told.get(key)
        self._incoming.take_progress(said, peer)
        if before is None or before.begun != said.begun:  # it may ask for messages again
            self._begins_anew(peer, said.trajectory)
        self._told[key] = said
        arrival.note(True)
        return None
