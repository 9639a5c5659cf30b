"""The files of artifacts that a site sends home, because a task there needs them. The order says which, the
record in the site's reply says with which bytes; nothing else is taken.
"""

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Container, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias, cast

from atelier.engine.config.base import Json, Spec, canonical
from atelier.engine.config.error import AtelierError
from atelier.engine.config.record import Digest, FileEntry, Provenance, Record
from atelier.engine.io.storage import (
    fetch,
    join,
    local_path,
    make_folder,
    put_file,
    sync_folder,
    verify,
    write_bytes,
)
from atelier.infra.dag import Product
from atelier.infra.sites.desk import OrderDesk, OrderedProduct, SiteOrder
from atelier.infra.sites.incoming import NotTaken, OneTransfer, received
from atelier.infra.store.lease import Holder
from atelier.infra.store.store import Store

FOLDER, TAKEN, SHORT = "files", ".taken", 16
PAYLOAD = re.compile(r"payload-[0-9a-f]+/")
MOST_REMEMBERED = 256  # replies to orders whose files are
Sent: TypeAlias = dict[OrderedProduct, dict[FileEntry, None]]  # the files of artifacts, in their order


class FileHead(Spec):
    """One file of an artifact that an order's site sends home."""

    order: Digest
    artifact: OrderedProduct
    entry: FileEntry

    @property
    def text(self) -> bytes:
        return self.model_dump_json().encode()


class Files:
    """The files that cross at the mailbox `url` of `site`."""

    def __init__(self, url: str, site: str) -> None:
        self._desk, self._site = OrderDesk(url), site
        self._one = OneTransfer()
        self._of = lru_cache(MOST_REMEMBERED)(self._read)

    def outgoing(self, peer: str, orders: Container[str] | None = None) -> Iterator[FileHead]:
        """What this site has for the orders of a peer, or for some of them."""
        for about in self._desk.listed():
            if about.home == peer and about.site == self._site and (orders is None or about.order in orders):
                for artifact, entries in self._sent(about.order).items():
                    folder = folder_of(self._desk, about.order, artifact)
                    for entry in entries if folder.exists() else ():
                        if (folder / entry.path).exists():
                            yield FileHead(order=about.order, artifact=artifact, entry=entry)

    def given(self, head: FileHead, peer: str) -> bool:
        """Whether this site has a file for an order of a peer."""
        order = self._desk.order(head.order)
        is_of_peer = order is not None and (order.home, order.site) == (peer, self._site)
        is_sent = is_of_peer and head.entry in self._sent(head.order).get(head.artifact, {})
        return is_sent and self.path(head).exists()

    def _sent(self, number: str) -> Sent:
        """The files that home needs of an order, as far as its last reply has their records."""
        reply = self._desk.about_reply(number)
        return self._of(number, reply.digest) if reply is not None else {}

    def _read(self, number: str, digest: str) -> Sent:
        """`_sent`, by the digest of the reply."""
        order, found = self._desk.order(number), Sent()
        for artifact, record in sent(self._desk, order) if order is not None else ():
            found.setdefault(artifact, {}).update(dict.fromkeys(record.files))
        return found

    def waiting(self, peer: str) -> list[str]:
        """The orders to a peer of which files are still to come, by the records that have come."""
        return [
            about.order
            for about in self._desk.listed()
            if (about.home, about.site) == (self._site, peer)
            and any(self._lacks(about.order, *each) for each in self._sent(about.order).items())
        ]

    def _lacks(self, number: str, artifact: OrderedProduct, entries: Iterable[FileEntry]) -> bool:
        if is_taken(self._desk, number, artifact):
            return False
        folder = folder_of(self._desk, number, artifact)
        return not all((folder / entry.path).exists() for entry in entries)

    def path(self, head: FileHead) -> Path:
        return folder_of(self._desk, head.order, head.artifact) / head.entry.path

    def judge(self, head: FileHead, peer: str) -> Path:
        """Where a file goes. Raises NotTaken for one that this site has not asked `peer` for."""
        order = self._desk.order(head.order)
        if order is None or (order.home, order.site) != (self._site, peer):
            raise NotTaken(f"there is no order {head.order[:16]} to {peer} here")
        if head.artifact not in wanted(order):
            about = f"{head.artifact.kind} {head.artifact.fingerprint[:16]}"
            raise NotTaken(f"the order {order.id[:16]} wants no files of {about}")
        entries = self._sent(order.id).get(head.artifact)
        if entries is None:
            raise NotTaken("its record has not come", "early")
        if head.entry not in entries:
            raise NotTaken(f"{head.entry.path[:80]} is no file of its record")
        return self.path(head)

    def offset(self, head: FileHead, peer: str) -> int | None:
        """How many bytes have come; None = all of it is here. Raises NotTaken, also while more are on their
        way.
        """
        path = self.judge(head, peer)
        self._one.check(path, path.name)
        return self._offset(head, path)

    def _offset(self, head: FileHead, path: Path) -> int | None:
        if is_taken(self._desk, head.order, head.artifact):
            return None
        part = part_of(path)
        return None if path.exists() else part.stat().st_size if part.exists() else 0

    def take(
        self,
        head: FileHead,
        peer: str,
        offset: int,
        blocks: Iterable[bytes],
        is_trusted: Callable[[], bool],
        note: Callable[[bool], None] = lambda has_come: None,
    ) -> None:
        """Take bytes from `offset` on; durable when it returns. `note` is called before the file exists.
        Raises NotTaken.
        """
        path, entry = self.judge(head, peer), (head.entry.bytes, head.entry.sha256)
        with self._one.of(path, path.name):
            if self._offset(head, path) is None:
                return
            make_folder(path.parent)
            try:
                received(part_of(path), path, entry, offset, blocks, is_trusted, note)
            except NotTaken as refused:  # other bytes come another time
                raise type(refused)(str(refused), "early") from None


def wanted(order: SiteOrder) -> list[OrderedProduct]:
    """The artifacts of an order whose files home needs."""
    return [product for task in order.tasks.values() for product in task.products.values() if product.is_sent]


def sent(desk: OrderDesk, order: SiteOrder) -> Iterator[tuple[OrderedProduct, Record]]:
    """The artifacts that home needs and that are finished, with their records as the site has answered."""
    reply, known = desk.reply(order.id), wanted(order)
    for document in reply.records if reply else ():
        try:
            record = Record.read(json.dumps(document), f"order {order.id[:8]}")
        except AtelierError:
            continue
        for artifact in known:
            if (artifact.kind, artifact.fingerprint) == (record.kind, record.fingerprint):
                yield artifact, record


def offer(desk: OrderDesk, order: SiteOrder, artifact: OrderedProduct, address: str, record: Record) -> None:
    """Put the files of a finished artifact at `address` where the agent finds them. Raises DamageError for
    one that is not as its record says.
    """
    folder = folder_of(desk, order.id, artifact)
    for entry in record.files:
        path = folder / entry.path
        if not path.exists() or path.stat().st_size != entry.bytes:
            make_folder(path.parent)
            fetch(f"{address}/{entry.path}", part_of(path))
            verify(str(part_of(path)), entry, f"{address}/{entry.path}")
            with part_of(path).open("rb") as file:
                os.fsync(file.fileno())  # an empty file would be sent again and again
            os.replace(part_of(path), path)
            sync_folder(path.parent)


def take_in(
    desk: OrderDesk, order: SiteOrder, ordered: OrderedProduct, product: Product, store: Store
) -> bool:
    """Publish an artifact whose files have come from another site, with that site in its record; False while
    they have not. Raises DamageError, and AtelierError for a record of something else, or files that no
    artifact has.
    """
    for artifact, record in sent(desk, order):
        folder = folder_of(desk, order.id, ordered)
        if artifact != ordered or not all((folder / entry.path).exists() for entry in record.files):
            continue
        same = (record.version, record.parents) == (product.version, product.parents)
        if not same or canonical(record.identity) != canonical(product.identity):
            raise AtelierError(f"{order.site} sends {record.kind} {record.name}, not what was asked for")
        if strange := [entry.path for entry in record.files if not PAYLOAD.match(entry.path)]:
            raise AtelierError(f"{order.site} sends {record.name}, {strange[0]!r} of it outside its payload")
        address = store.address(ordered.kind, ordered.fingerprint)
        for entry in record.files:
            verify(str(folder / entry.path), entry)
            put_file(folder / entry.path, join(address, entry.path))
        ended = min(record.provenance.get("ended", 0.0), time.time())
        about = cast(Provenance, {**record.provenance, "site": order.site, "ended": ended})
        store.publish(
            record.model_copy(update={"name": product.name, "provenance": about}), Holder.me(product.name)
        )
        drop(desk, order, ordered)
        return True
    return False


def drop(desk: OrderDesk, order: SiteOrder, artifact: OrderedProduct) -> None:
    """Remove the files of an artifact that was taken in: they are not fetched again."""
    folder = folder_of(desk, order.id, artifact)
    write_bytes(f"{folder}{TAKEN}", b"")
    shutil.rmtree(folder, ignore_errors=True)


def is_taken(desk: OrderDesk, number: str, artifact: OrderedProduct) -> bool:
    folder = folder_of(desk, number, artifact)
    return folder.with_name(folder.name + TAKEN).exists()


def folder_of(desk: OrderDesk, number: str, artifact: OrderedProduct) -> Path:
    return local_path(desk.folder(number)) / FOLDER / f"{artifact.kind}-{artifact.fingerprint[:SHORT]}"


def part_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


def told(head: FileHead) -> dict[str, Json]:
    """What the audit log says of a file."""
    about: dict[str, Json] = {"kind": "file", "order": head.order[:16], "of": head.artifact.kind}
    return about | head.entry.model_dump()
