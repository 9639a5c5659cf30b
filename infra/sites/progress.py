"""Progress of the readers of teachers' lessons, an item for each training."""

import hashlib
from collections.abc import Callable, Iterator

from atelier.engine.config.base import Json, canonical
from atelier.engine.config.document import parse_as
from atelier.engine.extensions.sites.mailbox import Mailbox
from atelier.engine.extensions.sites.messages import ReaderProgress
from atelier.infra.sites.audit import Audit
from atelier.infra.sites.incoming import Arrival, Incoming
from atelier.infra.sites.kinds import IsDue, Item, ItemKind

WHAT = "a report of progress"


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
        return self._item(parse_as(ReaderProgress, data, peer, WHAT))

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
