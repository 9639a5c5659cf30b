"""Send home the files of artifacts that a task there needs. The order names the artifacts, and the record in
the site's reply has the digests; no other files are accepted.
"""

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from atelier.engine.config.base import canonical
from atelier.engine.config.error import AtelierError
from atelier.engine.config.record import Provenance, Record
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
from atelier.infra.store.lease import Holder
from atelier.infra.store.store import Store

FOLDER, TAKEN, SHORT = "files", ".taken", 16
PAYLOAD = re.compile(r"payload-[0-9a-f]+/")
MOST_NAME, MOST_PATH = 255, 1000  # bytes of a file's name and of its path: any file system takes them


def wanted(order: SiteOrder) -> list[OrderedProduct]:
    """The artifacts of an order whose files home needs."""
    return [product for task in order.tasks.values() for product in task.products.values() if product.is_sent]


def sent(desk: OrderDesk, order: SiteOrder) -> Iterator[tuple[OrderedProduct, Record]]:
    """The finished artifacts that home needs, with their records from the site's reply."""
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
    """Copy the files of a finished artifact at `address` to the folder of the agent. Raises DamageError for a
    file that does not match its record.
    """
    folder = folder_of(desk, order.id, artifact)
    for entry in record.files:
        path = folder / entry.path
        if not path.exists() or path.stat().st_size != entry.bytes:
            make_folder(path.parent)
            fetch(f"{address}/{entry.path}", part_of(path))
            verify(str(part_of(path)), entry, f"{address}/{entry.path}")
            with part_of(path).open("rb") as file:
                os.fsync(file.fileno())  # a file lost in a power cut would be sent again and again
            os.replace(part_of(path), path)
            sync_folder(path.parent)


def take_in(
    desk: OrderDesk, order: SiteOrder, ordered: OrderedProduct, product: Product, store: Store
) -> bool:
    """Publish an artifact whose files have arrived from another site, which is named in its record; False
    while files are missing. Raises DamageError, and AtelierError for a record of another artifact, or paths
    that no artifact has.
    """
    for artifact, record in sent(desk, order):
        folder = folder_of(desk, order.id, ordered)
        if artifact != ordered:
            continue
        if strange := [entry.path for entry in record.files if not is_carried(entry.path)]:
            what = f"{order.site} sends {record.name} with {strange[0][:80]!r}, which is"
            raise AtelierError(f"{what} outside its payload, or too long")
        if not all((folder / entry.path).exists() for entry in record.files):
            continue
        same = (record.version, record.parents) == (product.version, product.parents)
        if not same or canonical(record.identity) != canonical(product.identity):
            raise AtelierError(f"{order.site} sends {record.kind} {record.name}, not the ordered artifact")
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
    """Remove the files of a published artifact, and mark it so that they are not fetched again."""
    folder = folder_of(desk, order.id, artifact)
    write_bytes(f"{folder}{TAKEN}", b"")
    shutil.rmtree(folder, ignore_errors=True)


def is_taken(desk: OrderDesk, number: str, artifact: OrderedProduct) -> bool:
    folder = folder_of(desk, number, artifact)
    return folder.with_name(folder.name + TAKEN).exists()


def is_carried(path: str) -> bool:
    """Whether a file with this path is accepted from another site."""
    sizes = [len(part.encode()) for part in path.split("/")]
    return bool(PAYLOAD.match(path)) and max(sizes) <= MOST_NAME and len(path.encode()) <= MOST_PATH


def folder_of(desk: OrderDesk, number: str, artifact: OrderedProduct) -> Path:
    return local_path(desk.folder(number)) / FOLDER / f"{artifact.kind}-{artifact.fingerprint[:SHORT]}"


def part_of(path: Path) -> Path:
    """The path of a file while it arrives; its name is short for any length of the file's name."""
    return path.with_name(f"{hashlib.sha256(path.name.encode()).hexdigest()[:32]}.part")
