"""Files of artifacts (infra/sites/files.py), an item each. An inbound file must be wanted by an order and be
in the record of its reply.
"""

import hashlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from atelier.engine.config.base import Json, Spec, canonical
from atelier.engine.config.document import parse_as
from atelier.engine.config.record import Digest, FileEntry
from atelier.engine.io.storage import make_folder
from atelier.infra.sites.audit import Audit
from atelier.infra.sites.desk import OrderDesk, OrderedProduct
from atelier.infra.sites.files import folder_of, is_carried, is_taken, part_of, sent, wanted
from atelier.infra.sites.incoming import Arrival, NotTaken, OneTransfer, received
from atelier.infra.sites.kinds import IsDue, Item, ItemKind

MOST_REMEMBERED = 256  # replies whose lists of files are cached
Sent: TypeAlias = dict[OrderedProduct, dict[FileEntry, None]]  # the files of artifacts, in their order


class FileHead(Spec):
    """One file of an artifact that an order's site sends home."""

    order: Digest
    artifact: OrderedProduct
    entry: FileEntry


class Files(ItemKind[FileHead]):
    """Files of artifacts to and from the mailbox `url` of `site`."""

    name = "file"
    early_s, again_s = 1.0, 10.0
    is_kept = True

    def __init__(self, url: str, site: str, audit: Audit, is_trusted: Callable[[str], bool]) -> None:
        super().__init__(audit)
        self._desk, self._site, self._is_trusted = OrderDesk(url), site, is_trusted
        self._one = OneTransfer()
        self._of = lru_cache(MOST_REMEMBERED)(self._read)

    def item(self, data: bytes, peer: str) -> Item[FileHead]:
        return self._item(parse_as(FileHead, data, peer, "the head of a file"))

    def _item(self, head: FileHead) -> Item[FileHead]:
        text = canonical(head.model_dump(mode="json"))
        about: dict[str, Json] = {"kind": "file", "order": head.order[:16], "of": head.artifact.kind}
        name = f"{head.entry.path[:80]} of the order {head.order[:16]}"
        key = hashlib.sha256(text).hexdigest()
        return Item(key, head, text, about | head.entry.model_dump(), name, key, head.entry.bytes)

    def groups(self, peer: str, is_due: IsDue) -> Iterator[Iterator[Item[FileHead]]]:
        """The files of this site for the orders of a peer."""
        for about in self._desk.listed():
            if about.home == peer and about.site == self._site:
                for artifact, entries in self._sent(about.order).items():
                    for entry in entries if folder_of(self._desk, about.order, artifact).exists() else ():
                        item = self._item(FileHead(order=about.order, artifact=artifact, entry=entry))
                        if is_due(item.key) and self.place(item.head).exists():
                            yield iter((item,))

    def expects(self, peer: str) -> bool:
        return any((about.home, about.site) == (self._site, peer) for about in self._desk.listed())

    def path(self, item: Item[FileHead], peer: str) -> Path:
        head, order = item.head, self._desk.order(item.head.order)
        is_of_peer = order is not None and (order.home, order.site) == (peer, self._site)
        is_sent = is_of_peer and head.entry in self._sent(head.order).get(head.artifact, {})
        if not is_sent or not self.place(head).exists():
            raise NotTaken("no such file")
        return self.place(head)

    def _sent(self, number: str) -> Sent:
        """The files of an order that home needs and whose records are in the last reply."""
        reply = self._desk.about_reply(number)
        return self._of(number, reply.digest) if reply is not None else {}

    def _read(self, number: str, digest: str) -> Sent:
        """`_sent`, cached by the digest of the reply."""
        order, found = self._desk.order(number), Sent()
        for artifact, record in sent(self._desk, order) if order is not None else ():
            found.setdefault(artifact, {}).update(dict.fromkeys(record.files))
        return found

    def place(self, head: FileHead) -> Path:
        return folder_of(self._desk, head.order, head.artifact) / head.entry.path

    def judge(self, head: FileHead, peer: str) -> Path:
        """The target of a file. Raises NotTaken for one that this site has not ordered from `peer`."""
        order = self._desk.order(head.order)
        if order is None or (order.home, order.site) != (self._site, peer):
            raise NotTaken(f"there is no order {head.order[:16]} to {peer} here")
        if head.artifact not in wanted(order):
            about = f"{head.artifact.kind} {head.artifact.fingerprint[:16]}"
            raise NotTaken(f"the order {order.id[:16]} needs no files of {about}")
        entries = self._sent(order.id).get(head.artifact)
        if entries is None:
            raise NotTaken("its record has not arrived", "early")
        if not is_carried(head.entry.path):
            raise NotTaken(f"{head.entry.path[:80]} is outside its payload, or too long")
        if head.entry not in entries:
            raise NotTaken(f"{head.entry.path[:80]} is not a file of its record")
        return self.place(head)

    def offset(self, item: Item[FileHead], peer: str) -> int | None:
        """As in ItemKind. Raises NotTaken also while a transfer of the file is under way."""
        path = self.judge(item.head, peer)
        self._one.check(path, path.name)
        return self._come(item.head, path)

    def _come(self, head: FileHead, path: Path) -> int | None:
        """How many bytes have arrived; None = all."""
        if is_taken(self._desk, head.order, head.artifact) or path.exists():
            return None
        part = part_of(path)
        return part.stat().st_size if part.exists() else 0

    def take(self, item: Item[FileHead], arrival: Arrival) -> Json:
        head, path = item.head, self.judge(item.head, arrival.peer)
        entry = (head.entry.bytes, head.entry.sha256)
        with self._one.of(path, path.name):
            if self._come(head, path) is None:
                arrival.note(False)
                return None
            make_folder(path.parent)
            received(part_of(path), path, entry, arrival, lambda: self._is_trusted(arrival.peer))
        return None
