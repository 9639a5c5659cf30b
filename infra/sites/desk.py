"""Orders between sites, as files in a mailbox folder. An order names tasks of a flow that another site is to
plan or run; replies report their progress; a cancellation ends them. All are JSON: no code or command
crosses.
"""

import hashlib
import time
from collections.abc import Iterator
from typing import Literal, TypeAlias

from pydantic import Field

from atelier.engine.config.base import Json, JsonObject, Spec, canonical, fingerprint
from atelier.engine.config.document import parse_as
from atelier.engine.config.error import DamageError, DataError
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.record import Digest
from atelier.engine.config.site_name import SiteName
from atelier.engine.io.storage import (
    Stamp,
    exists,
    join,
    local_path,
    names,
    read_bytes,
    remove,
    stamp_of,
    write_bytes,
)
from atelier.infra.sites.note_cache import NoteCache, NoteSummary

FOLDER, ENDING = "orders", ".json"
ENDED = ("finished", "failed", "stopped", "refused")
MOST, MOST_TASKS = 2 << 20, 1000  # bytes of a note; tasks of an order


class OrderedProduct(Spec):
    """A product that a task is to publish."""

    kind: str
    fingerprint: Digest
    is_sent: bool = Field(default=False, description="home needs its files")


class OrderedTask(Spec):
    """A task of an order: its name, its products, and the digest of its code at home ('' = none)."""

    task: str
    products: dict[str, OrderedProduct]
    code: str = ""


class SiteOrder(Spec):
    """Tasks of one run of a flow that `home` asks `site` to plan, or to run."""

    kind: Literal["order"] = "order"
    id: Digest
    act: Literal["plan", "run"]
    home: SiteName
    site: SiteName
    flow: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    document: JsonObject = Field(description="the flow's whole configuration, which the site validates")
    parallel: Parallel | None = Field(default=None, description="its layout there; None = chosen there")
    tasks: dict[str, OrderedTask] = Field(min_length=1, max_length=MOST_TASKS)
    version: str = Field(description="Atelier's")
    accept_code: bool = Field(default=False, description="continue from checkpoints of other code")

    @staticmethod
    def of(*, nonce: str = "", **fields: object) -> "SiteOrder":
        """An order with its id, a digest of its content: equal orders are one order, unless a `nonce`
        differs.
        """
        draft = SiteOrder.model_validate({**fields, "id": "0" * 64})
        return draft.model_copy(update={"id": fingerprint([draft.model_dump(mode="json"), nonce])})


class PlannedProduct(Spec):
    """A product in the plan of a site."""

    state: Literal["run", "reuse", "replay", "refused"]
    from_step: int = Field(default=0, ge=0)
    params: int = Field(default=0, ge=0)
    flops: float = Field(default=0.0, ge=0)
    memory_gb: float = Field(default=0.0, ge=0)
    step_s: float = Field(default=0.0, ge=0)
    device_hours: float = Field(default=0.0, ge=0)
    layout: Parallel = Parallel(shard=1, threads=1)


class TaskState(Spec):
    """The progress of a task, or the plan of its products."""

    state: Literal["", "running", "done", "reused", "failed", "stopped", "skipped"] = ""
    planned: dict[str, PlannedProduct] = {}
    waiting: str = Field(default="", description="the cause of a wait")
    warning: str = ""
    progress: int = Field(default=0, ge=0, description="of total, in unit; rate a second")
    total: int = Field(default=0, ge=0)
    unit: str = ""
    rate: float = Field(default=0.0, ge=0)
    loss: dict[str, float] = {}


class Reply(Spec):
    """The progress of an order; the reply with the highest number counts."""

    kind: Literal["reply"] = "reply"
    order: Digest
    home: SiteName
    site: SiteName
    number: int = Field(ge=1, lt=10**9)
    state: Literal["running", "finished", "failed", "stopped", "refused"]
    problem: str = ""
    tasks: dict[str, TaskState] = {}
    notes: tuple[str, ...] = ()
    records: tuple[JsonObject, ...] = Field(default=(), description="of finished products")

    @property
    def is_last(self) -> bool:
        return self.state in ENDED


class Cancellation(Spec):
    """Ends the order of this id."""

    kind: Literal["cancellation"] = "cancellation"
    order: Digest
    home: SiteName
    site: SiteName


Note: TypeAlias = SiteOrder | Reply | Cancellation
KINDS: dict[str, type[SiteOrder] | type[Reply] | type[Cancellation]] = {
    "order": SiteOrder,
    "reply": Reply,
    "cancellation": Cancellation,
}


def text_of(note: Note) -> bytes:
    return canonical(note.model_dump(mode="json"))


def note_of(text: bytes, kind: Json, place: str) -> Note:
    """Parse a note. Raises DamageError if it is not one of that kind."""
    if not isinstance(kind, str) or kind not in KINDS:
        raise DamageError(f"{place}: {str(kind)[:40]!r} is not a kind of note between sites", place=place)
    if len(text) > MOST:
        raise DamageError(f"{place}: {len(text)} bytes, a note between sites has at most {MOST}", place=place)
    return parse_as(KINDS[kind], text, place, f"an {kind}" if kind == "order" else f"a {kind}")


def order_id(note: Note) -> str:
    return note.id if isinstance(note, SiteOrder) else note.order


def digest_of(note: Note) -> str:
    return hashlib.sha256(text_of(note)).hexdigest()


def about_of(note: Note) -> NoteSummary:
    text, is_last = text_of(note), isinstance(note, Reply) and note.is_last
    digest = hashlib.sha256(text).hexdigest()
    return NoteSummary(order_id(note), note.home, note.site, digest, len(text), is_last)


def cancellation_of(about: NoteSummary) -> Cancellation:
    return Cancellation(order=about.order, home=about.home, site=about.site)


class OrderDesk:
    """The notes below the mailbox folder `url`."""

    def __init__(self, url: str) -> None:
        self.url, self._place = url, join(url, FOLDER)
        self._cache: NoteCache[Note] = NoteCache()

    def put(self, note: Note) -> None:
        """Write a note. Raises DataError if it is too large for other sites."""
        text = text_of(note)
        if len(text) > MOST:
            raise DataError(f"{note.kind}: {len(text)} bytes, and a note between sites has at most {MOST}")
        write_bytes(self._path(order_id(note), note.kind), text)

    def order(self, number: str) -> SiteOrder | None:
        found = self._read(number, "order")
        return found if isinstance(found, SiteOrder) and found.id == number else None

    def reply(self, number: str) -> Reply | None:
        """The newest reply; None if it is missing or damaged."""
        try:
            found = self._read(number, "reply")
        except DamageError:
            return None
        return found if isinstance(found, Reply) and found.order == number else None

    def about_reply(self, number: str) -> NoteSummary | None:
        """The summary of `reply`."""
        try:
            found = self._about(number, "reply")
        except DamageError:
            return None
        return found if found is not None and found.order == number else None

    def is_over(self, number: str) -> bool:
        """Whether an order has ended. If so, its notes are dropped from memory."""
        about = self.about_reply(number)
        if about is None or not about.is_last:
            return False
        self._cache.drop(self._path(number, "order"), self._path(number, "reply"))
        return True

    def is_cancelled(self, number: str) -> bool:
        return exists(self._path(number, "cancellation"))

    def listed(self) -> Iterator[NoteSummary]:
        """Summaries of all orders here that can be read."""
        found = names(self._place)
        self._cache.forget_all_but({self.folder(name) for name in found})
        for name in found:
            try:
                about = self._about(name, "order")
            except (DamageError, OSError):
                continue
            if about is not None and about.order == name:
                yield about

    def orders(self) -> Iterator[SiteOrder]:
        """All orders here that are not damaged."""
        for about in self.listed():
            try:
                order = self.order(about.order)
            except DamageError:
                continue
            if order is not None:
                yield order

    def waiting_for(self, peer: str) -> Iterator[tuple[str, NoteSummary]]:
        """Kinds and summaries of the newest notes for a site: orders that have not ended, their
        cancellations, and replies to its own orders.
        """
        for about in self.listed():
            if about.home == peer and (reply := self.about_reply(about.order)) is not None:
                yield "reply", reply
            if about.site == peer and not self.is_over(about.order):
                yield "order", about
                if self.is_cancelled(about.order):
                    yield "cancellation", about_of(cancellation_of(about))

    def note(self, kind: str, about: NoteSummary) -> Note | None:
        """A note that `waiting_for` has named; None if it is gone."""
        if kind == "cancellation":
            return cancellation_of(about)
        return self.order(about.order) if kind == "order" else self.reply(about.order)

    def folder(self, number: str) -> str:
        return join(self._place, number)

    def _path(self, number: str, kind: str) -> str:
        return join(self.folder(number), f"{kind}{ENDING}")

    def age(self, number: str) -> float:
        """Seconds since the last note of an order was written."""
        changed = (path.stat().st_mtime for path in local_path(self.folder(number)).glob(f"*{ENDING}"))
        return time.time() - max(changed, default=0.0)

    def forget(self, number: str) -> None:
        remove(self.folder(number))

    def _about(self, number: str, kind: str) -> NoteSummary | None:
        place = self._path(number, kind)
        stamp = self._stamp(place)
        if stamp is None:
            return None
        if (about := self._cache.about(place, stamp)) is None:
            note = self._parsed(place, kind, stamp)
            about = about_of(note) if note is not None else None
        return about

    def _read(self, number: str, kind: str) -> Note | None:
        place = self._path(number, kind)
        stamp = self._stamp(place)
        if stamp is None:
            return None
        return self._cache.note(place, stamp) or self._parsed(place, kind, stamp)

    def _stamp(self, place: str) -> Stamp | None:
        stamp = stamp_of(local_path(place))
        if stamp is None:
            self._cache.forget(place)
        return stamp

    def _parsed(self, place: str, kind: str, stamp: Stamp) -> Note | None:
        try:
            note = note_of(read_bytes(place, MOST), kind, place)
        except (FileNotFoundError, NotADirectoryError):
            return None
        self._cache.keep(place, stamp, about_of(note), note)
        return note
