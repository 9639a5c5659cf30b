"""Remove artifacts and files from a store: each by one rename, under its lease, while no run starts.

A remover holds one lease of the whole store. A starting run writes its manifest, waits until that lease is
free, and only then looks for artifacts to reuse. So either the remover sees the manifest, or the run sees the
result.
"""

import os
import stat
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from atelier.engine.config.error import StoppedError
from atelier.engine.io.storage import TEMPORARY, exists, is_local, join, local_path, remove, size_below
from atelier.infra.store.conditional_create import unlist
from atelier.infra.store.lease import (
    EXPIRY_S,
    LOG,
    POLL_S,
    Holder,
    Lease,
    LeaseLog,
    Renewal,
    take,
    wait_until_free,
)
from atelier.infra.store.store import RECORD

FOLDER = "removal"


@dataclass(frozen=True)
class Waste:
    """Something that may be removed, the reason, and its size. `address`: the artifact to lock meanwhile;
    `is_finished`: it has a record, so nothing is written there. With `is_log` only the damaged last entry of
    its lease log is removed.
    """

    url: str
    what: str
    why: str
    bytes: int
    address: str = ""
    is_damage: bool = False
    is_finished: bool = False
    is_log: bool = False


@contextmanager
def removing(root: str, on_wait: Callable[[str], None]) -> Iterator[Lease]:
    """Hold the store's removal lease; starting runs wait until the block ends."""
    address = join(root, FOLDER)
    lease = take(address, Holder.me("gc"), on_wait=on_wait)
    assert lease is not None  # nothing is published under this lease
    renewal = Renewal([lease])
    try:
        for number in lease.log.numbers():
            if number < lease.fence:
                remove(lease.log.place(number))  # only the newest entry counts
        yield lease
    finally:
        renewal.stop()
        lease.let_go()


def wait_for_removals(root: str, on_wait: Callable[[str], None], stopped: threading.Event) -> None:
    """Wait for the end of removals: for a run, after writing its manifest and before it reuses artifacts."""
    wait_until_free(join(root, FOLDER), on_wait=on_wait, stopped=stopped)


def holder_of(address: str) -> str:
    """The possible writer at an address, as text; '' = none."""
    last = LeaseLog(address).last()
    if last is None or last.act in ("release", "publish"):
        return ""
    return "" if last.holder is not None and last.holder.is_gone() else last.whose


def discard(waste: Waste, patience_s: float = EXPIRY_S) -> bool:
    """Remove it by one rename. Returns False if another process has taken its lease. If the lease log is
    damaged, wait for the unknown holder's silence, for at most twice `patience_s`.
    """
    if not waste.address:
        remove(waste.url)
        return True
    last = LeaseLog(waste.address).last()
    if last is None and not exists(waste.address):
        return True  # removed meanwhile by another process
    if waste.is_finished or (last is not None and last.act == "publish"):
        _vanish(waste.url)
        return True
    lease = _taken(waste.address, patience_s if last is not None and last.damage else 0.0)
    if lease is None:
        return False
    if waste.is_log and last is not None:
        remove(lease.log.place(last.number))
    else:
        _vanish(waste.url)
    if waste.is_log or waste.url != waste.address:
        lease.release()
    return True


def _taken(address: str, patience_s: float) -> Lease | None:
    """The lease, at once or after the silence of an unknown holder; None if another process holds it."""
    enough = threading.Event()
    timer = threading.Timer(2 * patience_s + POLL_S, enough.set)
    timer.daemon = True
    if patience_s:
        timer.start()
    else:
        enough.set()
    try:
        return take(address, Holder.me("gc"), expiry_s=patience_s or EXPIRY_S, stopped=enough)
    except StoppedError:
        return None
    finally:
        timer.cancel()


def _vanish(url: str) -> None:
    if not is_local(url):
        unlist(url)
        for each in (join(url, LOG), join(url, RECORD), url):  # else a reader restores the record
            remove(each)
        return
    path = local_path(url)
    aside = path.parent / f"{TEMPORARY}gc-{uuid.uuid4().hex[:8]}"
    with suppress(FileNotFoundError):
        path.rename(aside)
        remove(str(aside))


def size_of(url: str) -> int:
    """Bytes of a file or of all files below a folder."""
    if is_local(url):
        return sum(each.st_size for each in below(local_path(url)) if stat.S_ISREG(each.st_mode))
    return size_below(url)


def below(path: Path) -> Iterator[os.stat_result]:
    """stat of a file, or of a folder and all below it; files that vanish meanwhile are skipped."""
    paths = [str(path)]
    if not path.is_symlink():
        paths += [
            os.path.join(root, name) for root, *names in os.walk(path) for name in (*names[0], *names[1])
        ]
    for each in paths:
        with suppress(FileNotFoundError):
            yield os.stat(each)
