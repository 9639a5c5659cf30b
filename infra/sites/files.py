"""The files of artifacts that a site sends home, because a task there needs them. The order says which, the
record in the site's reply says with which bytes; nothing else is taken.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from atelier.engine.config.base import Json, Spec
from atelier.engine.config.error import AtelierError
from atelier.engine.config.record import Digest, FileEntry, Record
from atelier.engine.io.storage import fetch, local_path, make_folder, sync_folder, verify, write_bytes
from atelier.infra.sites.desk import OrderDesk, OrderedProduct, SiteOrder
from atelier.infra.sites.incoming import NotTaken, OneTransfer, received

FOLDER, TAKEN, SHORT = "files", ".taken", 16


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
        self._heads: dict[str, tuple[str, list[FileHead]]] = {}  # by order that is over: its reply's digest
        self._wanted: dict[str, list[OrderedProduct]] = {}  # by the digest of an order to another site

    def outgoing(self, peer: str) -> Iterator[FileHead]:
        """What this site has for the orders of a peer."""
        for about in self._desk.listed():
            folder = local_path(self._desk.folder(about.order)) / FOLDER
            if about.home == peer and about.site == self._site and folder.exists():
                yield from (head for head in self._heads_of(about.order) if self.path(head).exists())

    def _heads_of(self, number: str) -> list[FileHead]:
        """Of the files that home needs of an order, as far as they are finished."""
        reply, known = self._desk.about_reply(number), self._heads.get(number)
        if reply is not None and known is not None and known[0] == reply.digest:
            return known[1]
        order = self._desk.order(number)
        found = [
            FileHead(order=number, artifact=artifact, entry=entry)
            for artifact, record in (sent(self._desk, order) if order is not None else ())
            for entry in record.files
        ]
        if reply is not None and self._desk.is_over(number):
            self._heads[number] = (reply.digest, found)
        return found

    def waiting(self, peer: str) -> list[str]:
        """The orders to a peer of which files are still to come."""
        found: dict[str, list[OrderedProduct]] = {}
        for about in self._desk.listed():
            if (about.home, about.site) == (self._site, peer):
                if (known := self._wanted.get(about.digest)) is None:
                    order = self._desk.order(about.order)
                    known = self._wanted[about.digest] = wanted(order) if order is not None else []
                found[about.order] = known
        return [
            number
            for number, products in found.items()
            if not all(is_taken(self._desk, number, each) for each in products)
        ]

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
        for artifact, record in sent(self._desk, order):
            if artifact == head.artifact and head.entry in record.files:
                return self.path(head)
            if artifact == head.artifact:
                raise NotTaken(f"{head.entry.path[:80]} is no file of its record")
        raise NotTaken("its record has not come", "early")

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
                raise NotTaken(str(refused), "early") from None


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
