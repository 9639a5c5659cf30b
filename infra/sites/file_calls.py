"""The calls by which files of artifacts cross (infra/sites/files.py): pushed to a site that can be called,
fetched by one that cannot.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from functools import partial
from itertools import islice

import grpc
from pydantic import Field

from atelier.engine.config.base import Json, Spec
from atelier.engine.config.document import parse_as, parse_object, whole_of
from atelier.engine.config.error import AtelierError
from atelier.infra.sites import files
from atelier.infra.sites.audit import Audit
from atelier.infra.sites.files import FileHead, Files
from atelier.infra.sites.hourly import Hourly
from atelier.infra.sites.incoming import Damaged, NotTaken
from atelier.infra.sites.methods import fitting
from atelier.infra.sites.refusals import Apart, CompletedKeys, Refusals, RetrySchedule, is_of_one
from atelier.infra.sites.transfer import (
    TIMEOUT_S,
    CallChannel,
    blocks_of,
    is_settled,
    offered,
    patience,
    push,
    reason,
)

WHAT = "the head of a file"
MOST_HEADS, MOST_FILES = 1000, 10**6  # of one answer; of all that are asked for
AGAIN_S = 10.0  # after a file that was not taken when it had come; twice as long if it comes damaged again


class PlacedHead(Spec):
    """A file and where its bytes begin."""

    head: FileHead
    offset: int = Field(ge=0)


class FileCalls:
    """What an agent answers and asks about files."""

    def __init__(
        self,
        found: Files,
        audit: Audit,
        is_trusted: Callable[[str], bool],
        service: str,
        hourly: Hourly,
        refusals: Refusals,
    ) -> None:
        self._files, self._audit, self._is_trusted, self._service = found, audit, is_trusted, service
        self._hourly = hourly
        self._refusals = refusals
        self._later = defaultdict[str, RetrySchedule[str]](lambda: RetrySchedule(AGAIN_S))  # by peer: heads
        self._after: dict[str, int] = {}  # by peer: heads that were looked at, where there are more
        self._settled = defaultdict[str, CompletedKeys[str]](
            CompletedKeys
        )  # by peer: heads that it has, or never takes

    # what others ask, by name of the call

    def offer(self, request: bytes, peer: str) -> dict[str, Json]:
        head = parse_as(FileHead, request, peer, WHAT)
        offset = self._files.offset(head, peer)
        if offset is not None:
            self._hourly.check(peer, head.entry.bytes - offset)
        return {"offset": offset}

    def put(self, requests: Iterator[bytes], peer: str) -> dict[str, Json]:
        placed = parse_as(PlacedHead, next(requests, b"{}"), peer, WHAT)
        with self._hourly.admitted(peer, placed.head.entry.bytes - placed.offset, placed.offset) as counted:
            self._take(placed.head, peer, placed.offset, counted(requests))
        return {}

    def heads(self, request: bytes, peer: str) -> dict[str, Json]:
        """Of the files for a peer, the first `after` left out: of the orders that it names, where it names
        any.
        """
        asked = parse_object(request, peer, "a request")
        orders, after = asked.get("orders"), min(max(0, whole_of(asked.get("after"))), MOST_FILES)
        found = self._files.outgoing(peer, orders if isinstance(orders, list) else None)
        later = [head.model_dump(mode="json") for head in islice(found, after, after + MOST_HEADS + 1)]
        heads = fitting(later, MOST_HEADS)
        return {"heads": heads, "next": after + len(heads) if len(heads) < len(later) else 0}

    def get(self, request: bytes, peer: str) -> Generator[bytes, None, None]:
        """Raises NotTaken for a file that this site does not send to `peer`."""
        placed = parse_as(PlacedHead, request, peer, WHAT)
        if not self._files.given(placed.head, peer):
            raise NotTaken("no such file")
        blocks = blocks_of(self._files.path(placed.head), placed.offset)
        left = placed.head.entry.bytes - placed.offset
        with self._hourly.admitted(peer, left):
            yield from self._audit.given(blocks, left, peer, **files.told(placed.head))

    def _take(self, head: FileHead, peer: str, offset: int, blocks: Iterator[bytes]) -> None:
        def note(has_come: bool) -> None:
            self._audit.add_received(peer, has_come=has_come, **files.told(head))

        self._files.take(head, peer, offset, blocks, lambda: self._is_trusted(peer), note)

    # what it asks

    def send(self, channel: CallChannel, peer: str) -> None:
        """Push what a peer lacks."""
        settled = self._settled[peer]
        each = Apart()
        for head in self._files.outgoing(peer):
            key = head.model_dump_json()
            if key in settled or not self._later[peer].is_due(key):
                continue
            send, refused = partial(self._send, channel, peer, head), partial(self._not_taken, peer, head)
            with each.one():
                if is_settled(send, refused, partial(self._early, peer, head)):
                    settled.add(key)
                    self._settle(peer, key)
        each.end()

    def _send(self, channel: CallChannel, peer: str, head: FileHead) -> None:
        offset = offered(channel, f"/{self._service}/OfferFile", head.text, peer)
        if offset is not None:
            begin, path = PlacedHead(head=head, offset=offset).model_dump_json(), self._files.path(head)
            with self._hourly.admitted(peer, head.entry.bytes - offset, offset) as counted:
                try:
                    blocks = counted(blocks_of(path, offset))
                    push(channel, f"/{self._service}/PutFile", begin.encode(), blocks, head.entry.bytes)
                except (OSError, grpc.RpcError) as error:
                    if is_of_one(error):  # it may be damaged here
                        self._later[peer].failed(head.model_dump_json(), is_damaged=True)
                    raise
                self._audit.add("sent", who=peer, **files.told(head))
        else:  # it is there: the answer to the push may have been lost
            self._audit.add_once("sent", peer, **files.told(head))

    def _settle(self, peer: str, key: str) -> None:
        """A file is refused no more."""
        self._later[peer].succeeded(key)
        self._refusals.settled(peer, key)

    def _early(self, peer: str, head: FileHead, why: Exception, *, is_here: bool = False) -> None:
        what = f"{head.entry.path} of the order {head.order[:16]}"
        self._refusals.early(peer, head.model_dump_json(), what, why, is_here=is_here)

    def _not_taken(self, peer: str, head: FileHead, error: grpc.RpcError) -> None:
        self._audit.add("not taken", who=peer, why=reason(error), **files.told(head))

    def fetch(self, channel: CallChannel, peer: str) -> None:
        """Fetch what a peer has for this site, of the files of one answer; the others the next times."""
        orders, after = self._files.waiting(peer), self._after.pop(peer, 0)
        if not orders:
            return
        request = json.dumps({"orders": orders, "after": after}).encode()
        answer = channel.unary_unary(f"/{self._service}/FileHeads")(request, timeout=TIMEOUT_S)
        said = parse_object(answer, peer, "the heads of files")
        found, self._after[peer] = said.get("heads"), whole_of(said.get("next"))
        each = Apart()
        for document in found[:MOST_HEADS] if isinstance(found, list) else ():
            try:
                head = parse_as(FileHead, json.dumps(document), peer, WHAT)
                offset = self._files.offset(head, peer)
            except AtelierError:  # not asked for, or not yet: the others are fetched
                continue
            if offset is not None and self._later[peer].is_due(head.model_dump_json()):
                with each.one():
                    self._fetch(channel, peer, head, offset)
        each.end()

    def _fetch(self, channel: CallChannel, peer: str, head: FileHead, offset: int) -> None:
        """Fetch a file from `offset` on; one that is not as announced, or not given, again after a while."""
        asked = PlacedHead(head=head, offset=offset).model_dump_json().encode()
        ask = channel.unary_stream(f"/{self._service}/GetFile")
        left = head.entry.bytes - offset
        self._hourly.check(peer, left)  # what waits for that is no fault of the file
        try:
            with self._hourly.admitted(peer, left, offset) as counted:
                blocks = ask(asked, timeout=patience(head.entry.bytes))
                self._take(head, peer, offset, counted(blocks))
        except (NotTaken, OSError, grpc.RpcError) as error:
            if not is_of_one(error):
                raise
            self._later[peer].failed(head.model_dump_json(), is_damaged=isinstance(error, Damaged))
            self._early(peer, head, error, is_here=True)
            return
        self._settle(peer, head.model_dump_json())
