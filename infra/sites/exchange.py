"""The exchange between agents: four calls for items of every kind (kinds.py), over gRPC or a bucket.

Offer asks from which byte a peer wants a body. Put sends an item. List asks a peer that cannot call this site
for its items, and reports the results of the last list. Get fetches a body. An item is judged by its head
before its body is read.
"""

import hashlib
import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, nullcontext
from typing import Any, TypeAlias

import grpc
from pydantic import Field

from atelier.engine.config.base import Json, JsonObject, Spec, canonical
from atelier.engine.config.document import parse_as, parse_object
from atelier.engine.config.error import AtelierError, DamageError
from atelier.infra.sites.audit import Audit
from atelier.infra.sites.hourly import Hourly, SendLimit
from atelier.infra.sites.incoming import Arrival, NotTaken
from atelier.infra.sites.kinds import Item, ItemKind
from atelier.infra.sites.refusals import (
    Apart,
    CompletedKeys,
    Refusals,
    RetrySchedule,
    ending,
    is_of_one,
    status_of,
)
from atelier.infra.sites.transfer import (
    CODES,
    EARLY,
    NEVER,
    OVER,
    TIMEOUT_S,
    CallError,
    PeerLink,
    blocks_of,
    code_of,
    patience,
    reason,
)

CALLS = ("Offer", "Put", "List", "Get")
MOST_ITEMS, ROOM = 1000, 3 << 20  # items of a list, and their bytes: a frame has at most 4 MiB
MOST_WHY = 300
RACE_S = 1.0  # until the next try of a body that became too early while it crossed
AnyKind: TypeAlias = ItemKind[Any]  # a kind reads its own heads
AnyItem: TypeAlias = Item[Any]


class Result(Spec):
    """The result of a listed item: its key, a status code, the bytes that crossed and the seconds."""

    key: str = Field(max_length=200)
    code: str = Field(default="OK", max_length=40)
    why: str = Field(default="", max_length=MOST_WHY)
    size: int = Field(default=0, ge=0)
    seconds: float = Field(default=0.0, ge=0)
    is_moved: bool = Field(default=False, description="its body had crossed when it was refused")

    @staticmethod
    def of(key: str, error: CallError, *, is_moved: bool = False) -> "Result":
        return Result(key=key, code=error.code().name, why=error.details()[:MOST_WHY], is_moved=is_moved)


class ItemRequest(Spec):
    kind: str = Field(max_length=40)
    head: JsonObject = {}
    offset: int = Field(default=0, ge=0)
    results: tuple[Result, ...] = Field(default=(), max_length=MOST_ITEMS)


class Listed(Spec):
    key: str = Field(max_length=200)
    head: JsonObject


class Listing(Spec):
    groups: tuple[tuple[Listed, ...], ...] = Field(default=(), max_length=MOST_ITEMS)


class SiteExchange:
    """The calls that a site's agent answers and makes."""

    def __init__(
        self,
        kinds: Iterable[AnyKind],
        audit: Audit,
        hourly: Hourly,
        refusals: Refusals,
        pace: SendLimit | None = None,
    ) -> None:
        self._pace = pace or SendLimit()
        self.kinds: Mapping[str, AnyKind] = {kind.name: kind for kind in kinds}
        self._audit, self._hourly, self._refusals = audit, hourly, refusals
        self._settled = defaultdict[str, CompletedKeys[str]](CompletedKeys)  # by peer: not sent again
        self.later = defaultdict[str, RetrySchedule[str]](RetrySchedule)  # by peer: retried later
        self._listed: dict[tuple[str, str], dict[str, AnyItem]] = {}  # by peer and kind, in the last list
        self._results: dict[tuple[str, str], list[Result]] = {}  # by the same: of the peer's last list
        self._locks = defaultdict[tuple[str, str], threading.Lock](threading.Lock)  # one thread carries each

    # calls of peers

    def answer(self, call: str, requests: Iterator[bytes], peer: str) -> Iterator[bytes]:
        """Answer a call of a peer: one document, or for Get the blocks of a body. Raises NotTaken,
        DamageError.
        """
        asked = parse_as(ItemRequest, next(requests, b""), peer, "a request")
        kind = self.kinds.get(asked.kind)
        if kind is None:
            raise NotTaken(f"kind {asked.kind[:40]!r}, not one of {', '.join(self.kinds)}")
        if call == "List":
            yield canonical(self._list(kind, asked, peer))
            return
        item = kind.item(canonical(asked.head), peer)
        if call == "Get":
            yield from self._get(kind, item, asked.offset, peer)
        elif call == "Offer":
            offset = kind.offset(item, peer)
            if offset is not None and item.size is not None:
                self._hourly.check(peer, item.size - offset)
            yield canonical({"offset": offset})
        else:
            yield canonical(self._put(kind, item, asked.offset, requests, peer))

    def _put(
        self, kind: AnyKind, item: AnyItem, offset: int, blocks: Iterator[bytes], peer: str
    ) -> dict[str, Json]:
        took: list[bool] = []

        def note(is_new: bool) -> None:
            kind.note("received", peer, item, is_new=is_new)
            took.append(is_new)

        if item.size is None:
            answer = kind.take(item, Arrival(peer, note))
        else:
            with self._hourly.admitted(peer, item.size - offset, offset) as counted:
                answer = kind.take(item, Arrival(peer, note, offset, counted(blocks)))
        return {"took": took[-1] if took else None, "answer": answer}

    def _get(self, kind: AnyKind, item: AnyItem, offset: int, peer: str) -> Iterator[bytes]:
        path, left = kind.path(item, peer), (item.size or 0) - offset
        with self._hourly.admitted(peer, left):
            yield from self._audit.given(self._pace.paced(blocks_of(path, offset)), left, peer, **item.about)

    def _list(self, kind: AnyKind, asked: ItemRequest, peer: str) -> dict[str, Json]:
        """The items for a peer, after its results for those that were listed before."""
        before = self._listed.get((peer, kind.name), {})
        for result in asked.results:
            if (item := before.pop(result.key, None)) is not None:  # one result for each
                self._hear(kind, item, result, peer)
        listed, groups, room = dict[str, AnyItem](), list[Json](), ROOM
        for group in self._groups(kind, peer):
            found: list[Json] = []
            groups.append(found)
            for item in self._audit.readable(self._due(group, kind, peer)):
                room -= len(item.text)
                if len(listed) == MOST_ITEMS or (listed and room < 0):
                    break
                if item.size is None:  # no item without its line in the log
                    kind.note("fetched", peer, item, is_new=False)
                found.append({"key": item.key, "head": json.loads(item.text)})
                listed[item.key] = item
            if len(listed) == MOST_ITEMS or room < 0:
                break
        self._listed[peer, kind.name] = listed
        return {"groups": [group for group in groups if group]}

    def _groups(self, kind: AnyKind, peer: str) -> Iterator[Iterable[AnyItem]]:
        """The groups to list. Kept items that never failed come first, as a list has little room."""
        later, is_due = self.later[peer], self._is_due(peer)
        if not kind.is_kept:
            yield from kind.groups(peer, is_due)
            return
        yield from kind.groups(peer, lambda key: is_due(key) and not later.has_failed(key))
        yield from kind.groups(peer, lambda key: is_due(key) and later.has_failed(key))

    def _hear(self, kind: AnyKind, item: AnyItem, result: Result, peer: str) -> None:
        if result.code == "OK":
            self._taken(kind, item, peer, result.size, result.seconds)
        else:
            code = CODES.get(result.code, grpc.StatusCode.UNKNOWN)
            self._refused(kind, item, peer, CallError(code, result.why), is_moved=result.is_moved)

    # own calls

    def send(self, link: PeerLink, peer: str, kind: AnyKind) -> None:
        """Send a peer the items that it lacks. Raises the first error, after all groups."""
        each = Apart()
        with self._locks[peer, kind.name]:
            for group in kind.groups(peer, self._is_due(peer)):
                with each.one():
                    for item in self._due(group, kind, peer):
                        if not self._send(link, peer, kind, item):
                            break
        each.end()

    def _is_due(self, peer: str) -> Callable[[str], bool]:
        return lambda key: key not in self._settled[peer] and self.later[peer].is_due(key)

    def _due(self, group: Iterable[AnyItem], kind: AnyKind, peer: str) -> Iterator[AnyItem]:
        """The items of a group to try now: those before one that waits for a retry."""
        for item in group:
            if not self.later[peer].is_due(item.key):
                return
            if item.key not in self._settled[peer]:
                yield item

    def _send(self, link: PeerLink, peer: str, kind: AnyKind, item: AnyItem) -> bool:
        """Send an item; False if the next ones of its group must wait for it."""
        is_moved = False
        try:
            offset: Json = 0
            if item.size is not None:
                offset = _parsed(self._call(link, "Offer", kind, item), peer).get("offset")
            if isinstance(offset, int):
                is_moved = item.size is not None
                self._push(link, peer, kind, item, offset)
            else:  # the peer has it: the answer to the push may have been lost
                kind.note("sent", peer, item, is_new=False)
                self._taken(kind, item, peer)
        except (OSError, grpc.RpcError) as error:
            if not is_of_one(error):
                raise
            is_over = self._refused(kind, item, peer, error, is_moved=is_moved)
            if status_of(error) in (None, grpc.StatusCode.UNKNOWN):
                raise
            return is_over
        return True

    def _push(self, link: PeerLink, peer: str, kind: AnyKind, item: AnyItem, offset: int) -> None:
        left, began = (item.size or 0) - offset, time.monotonic()
        budget = nullcontext(iter) if item.size is None else self._hourly.admitted(peer, left, offset)
        with budget as counted:
            parts = blocks_of(kind.path(item, peer), offset, link.block) if item.size else ()
            blocks = counted(self._pace.paced(parts)) if item.size else ()
            answer = self._call(link, "Put", kind, item, offset, blocks)
            if item.size is not None:  # it has crossed, whatever the answer is
                kind.note("sent", peer, item, is_new=left > 0)
        took = _parsed(answer, peer).get("took")
        if item.size is None and isinstance(took, bool):
            kind.note("sent", peer, item, is_new=took)
        self._taken(kind, item, peer, left, time.monotonic() - began)

    def ask(self, link: PeerLink, peer: str, kind: AnyKind, item: AnyItem) -> Json:
        """Send an item and return the answer of the peer's kind. Raises RpcError."""
        return _parsed(self._call(link, "Put", kind, item), peer).get("answer")

    def _call(
        self,
        link: PeerLink,
        call: str,
        kind: AnyKind,
        item: AnyItem,
        offset: int = 0,
        blocks: Iterable[bytes] = (),
    ) -> bytes:
        about = {"kind": kind.name, "head": json.loads(item.text), "offset": offset}
        timeout = kind.timeout_s if call == "Offer" or item.size is None else patience(item.size)
        return link.ask(call, canonical(about), blocks, timeout)

    def _taken(self, kind: AnyKind, item: AnyItem, peer: str, size: int = 0, seconds: float = 0.0) -> None:
        """Remember that a peer has an item."""
        if kind.is_kept:
            self._settled[peer].add(item.key)
        self.later[peer].succeeded(item.key)
        self._refusals.settled(peer, f"{kind.name} {item.group}")
        kind.settled(peer, item, size, seconds)

    def _refused(self, kind: AnyKind, item: AnyItem, peer: str, error: Exception, *, is_moved: bool) -> bool:
        """Remember that a peer refused an item. Returns whether the next ones of its group can be tried."""
        code, later = status_of(error), self.later[peer]
        if code in NEVER:
            is_told = is_moved or not item.is_again
            if item.about and is_told:
                self._audit.add("not taken", who=peer, why=reason(error), **item.about)
            if item.name and is_told:
                self._refusals.never(peer, item.name, error)
            if not is_moved or code == OVER:
                if kind.is_kept:
                    self._settled[peer].add(item.key)
                kind.settled(peer, item)
                return True
            later.failed(item.key, kind.again_s, is_damaged=True)
            return False
        if is_moved:
            later.failed(item.key, kind.again_s if code not in EARLY else RACE_S, is_damaged=False)
        elif kind.early_s:
            later.failed(item.key, kind.early_s, is_damaged=False)
        if item.name:
            self._refusals.early(peer, f"{kind.name} {item.group}", item.name, error)
        kind.early(peer, item, code)
        return not kind.holds_up(code)

    def fetch(self, link: PeerLink, peer: str, kind: AnyKind) -> None:
        """Fetch a peer's items for this site. Raises the first error, after all groups."""
        each = Apart()
        with self._locks[peer, kind.name]:
            said = self._results.get((peer, kind.name), [])[:MOST_ITEMS]  # kept until the peer has them
            if not said and not kind.expects(peer):
                return
            about = {"kind": kind.name, "results": [one.model_dump(mode="json") for one in said]}
            answer = link.ask("List", canonical(about), (), min(kind.timeout_s, TIMEOUT_S))
            results = self._results[peer, kind.name] = []
            for group in parse_as(Listing, answer, peer, "a list of items").groups:
                with each.one():
                    for listed in group:
                        if not self._fetch(link, peer, kind, listed, results):
                            break
        each.end()

    def _fetch(self, link: PeerLink, peer: str, kind: AnyKind, listed: Listed, results: list[Result]) -> bool:
        """Fetch an item; False if the next ones of its group must wait for it."""
        item: AnyItem | None = None
        if not self.later[peer].is_due(_here(listed)):  # whatever result the peer has
            return False
        try:
            item = kind.item(canonical(listed.head), peer)
            offset = 0 if item.size is None else kind.offset(item, peer)
            if item.size is None:
                self._put(kind, item, 0, iter(()), peer)
        except (AtelierError, OSError) as error:
            found = self._decline(kind, item, peer, error)
            results.append(Result.of(listed.key, found))
            return found.code() in NEVER or not kind.holds_up(found.code())
        left = 0 if item.size is None or offset is None else item.size - offset
        began = time.monotonic()
        if item.size is not None and offset is not None:
            self._hourly.check(peer, left)  # a wait for the budget is no failure of the item
            about = {"kind": kind.name, "head": listed.head, "offset": offset}
            try:
                with closing(link.get(canonical(about), patience(item.size))) as blocks:
                    self._put(kind, item, offset, blocks, peer)
            except (AtelierError, OSError, grpc.RpcError) as error:
                if not is_of_one(error):
                    raise
                found = self._decline(kind, item, peer, error, is_moved=True)
                results.append(Result.of(listed.key, found, is_moved=True))
                if not isinstance(error, grpc.RpcError) and found.code() not in EARLY:
                    self.later[peer].failed(_here(listed), kind.again_s / 10, is_damaged=True)
                if found.code() not in EARLY:
                    raise
                return False
        results.append(Result(key=listed.key, size=max(0, left), seconds=time.monotonic() - began))
        self.later[peer].succeeded(_here(listed))
        self._refusals.settled(peer, f"here {kind.name} {item.group}")
        return True

    def _decline(
        self, kind: AnyKind, item: AnyItem | None, peer: str, error: Exception, *, is_moved: bool = False
    ) -> CallError:
        """Record that this site refuses an item of a peer; returns the result for the peer."""
        if isinstance(error, grpc.RpcError):  # the peer itself did not send the body
            code = code_of(error)
            found = CallError(code if code in EARLY else grpc.StatusCode.UNKNOWN, "")
        else:
            found = ending(error, peer, self._audit)
        if item is not None and item.name and (is_moved or found.code() not in NEVER):
            self._refusals.early(peer, f"here {kind.name} {item.group}", item.name, error, is_here=True)
        return found


def _parsed(answer: bytes, peer: str) -> dict[str, Json]:
    """Parse a peer's answer. Raises CallError (UNKNOWN) for an invalid one."""
    try:
        return parse_object(answer, peer, "an answer")
    except DamageError as error:
        raise CallError(grpc.StatusCode.UNKNOWN, str(error)) from None


def _here(listed: Listed) -> str:
    """The key of an item whose body came damaged: this site's own, as the sender chooses `Listed.key`."""
    return f"here {hashlib.sha256(canonical(listed.head)).hexdigest()}"
