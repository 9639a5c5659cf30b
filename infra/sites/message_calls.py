"""The calls by which messages of trainings cross (infra/sites/incoming.py): pushed to a site that can be
called, fetched by one that cannot.
"""

import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path

import grpc
from pydantic import Field

from atelier.engine.config.base import Json, Spec
from atelier.engine.config.document import parse_as, parse_object
from atelier.engine.config.record import Digest
from atelier.engine.extensions.sites.mailbox import Mailbox
from atelier.engine.extensions.sites.messages import BODY, Contribution, Message, head_of
from atelier.engine.extensions.sites.rates import tell_rate
from atelier.engine.io.storage import Stamp, local_path, stamp_of
from atelier.infra.sites.audit import Audit
from atelier.infra.sites.hourly import Hourly
from atelier.infra.sites.incoming import Damaged, Incoming, NotTaken
from atelier.infra.sites.methods import fitting
from atelier.infra.sites.refusals import Apart, CompletedKeys, Refusals, RetrySchedule, is_of_one
from atelier.infra.sites.transfer import (
    NEVER,
    TIMEOUT_S,
    CallChannel,
    blocks_of,
    code_of,
    is_settled,
    offered,
    patience,
    push,
    reason,
)

MOST_HEADS = 1000  # of one answer
LAST = 10**9  # after the last round that there can be
OFFER_AGAIN_S, MOST_ASKED = 30.0, 3  # messages that are kept: their reader may have lost some

Bytes = tuple[str, int, str, Stamp | None]  # of a message: trajectory, round, digest, and of its file here


class AskedBytes(Spec):
    """Which bytes of a message are asked for."""

    trajectory: Digest
    round: int
    offset: int = Field(ge=0)


class MessageCalls:
    """What an agent answers and asks about the messages in the mailbox `url` of `site`."""

    def __init__(
        self,
        url: str,
        site: str,
        incoming: Incoming,
        audit: Audit,
        is_trusted: Callable[[str], bool],
        service: str,
        hourly: Hourly,
        refusals: Refusals,
    ) -> None:
        self._url, self._site, self._audit, self._is_trusted = url, site, audit, is_trusted
        self._service, self._hourly, self._refusals = service, hourly, refusals
        self._incoming = incoming
        self._delivered: dict[tuple[str, str], int] = {}  # the last round by peer and trajectory
        self._offered: dict[tuple[str, str], float] = {}  # when some were offered again, by the same
        self._asked: dict[tuple[str, str], int] = {}  # the last round of those, by the same
        self._took: dict[str, tuple[int, float]] = {}  # by peer: bytes, seconds of the last contribution
        self._later = defaultdict[str, RetrySchedule[Bytes]](
            lambda: RetrySchedule(OFFER_AGAIN_S)
        )  # by peer: to fetch
        self._refused = defaultdict[str, CompletedKeys[Bytes]](
            CompletedKeys
        )  # by peer: what is neither sent nor fetched

    # what others ask, by name of the call

    def offer(self, request: bytes, peer: str) -> dict[str, Json]:
        head = head_of(request, peer)
        offset = self._incoming.offset(head, peer)
        if offset is not None:
            self._hourly.check(peer, head.body.bytes - offset)
        return {"offset": offset}

    def put(self, requests: Iterator[bytes], peer: str) -> dict[str, Json]:
        about = parse_object(next(requests, b"{}"), peer, "the begin of a message")
        offset = about.pop("offset", None)
        head = head_of(json.dumps(about), peer)
        if not isinstance(offset, int) or offset < 0:
            raise NotTaken("without its offset")
        with self._hourly.admitted(peer, head.body.bytes - offset, offset) as counted:
            self._take(head, peer, offset, counted(requests))
        return {}

    def heads(self, request: bytes, peer: str) -> dict[str, Json]:
        """The heads of this site's messages of rounds that are not there yet."""
        given = parse_object(request, peer, "a request")
        known, took = given.get("known"), given.get("took")
        match took:  # of what it fetched last: the bytes that this site has sent
            case [int(size), int() | float() as seconds] if size > 0 and math.isfinite(seconds):
                tell_rate(self._url, peer, size, seconds)
        known = known if isinstance(known, dict) else {}
        found: list[Json] = []
        for about in self._incoming.trainings(peer):
            last = known.get(about.trajectory)
            after = last if isinstance(last, int) else 0
            with self._audit.complaining():
                for head in Mailbox(self._url, about.trajectory).sent(self._site, after):
                    found.append(head.model_dump(mode="json", by_alias=True))
        return {"heads": fitting(found, MOST_HEADS)}

    def get(self, request: bytes, peer: str) -> Generator[bytes, None, None]:
        """Raises NotTaken for a message that this site does not send to `peer`."""
        asked = parse_as(AskedBytes, request, peer, "a request")
        box = Mailbox(self._url, asked.trajectory)
        about = box.about(self._site)
        if about is None or peer not in about.sites:
            raise NotTaken("no such message")
        if (head := box.read(asked.round, self._site)) is None:
            raise NotTaken("no such message", "over")
        blocks, left = blocks_of(_body(box, head), asked.offset), head.body.bytes - asked.offset
        with self._hourly.admitted(peer, left):
            yield from self._audit.given(blocks, left, peer, **told(head))

    def begins_anew(self, peer: str, trajectory: str) -> None:
        """A reader may ask for messages that it has had."""
        self._delivered.pop((peer, trajectory), None)

    def _take(self, head: Message, peer: str, offset: int, blocks: Iterator[bytes]) -> None:
        def note(has_come: bool) -> None:
            self._audit.add_received(peer, has_come=has_come, **told(head))

        self._incoming.take(head, peer, offset, blocks, lambda: self._is_trusted(peer), note)

    # what it asks

    def send(self, channel: CallChannel, peer: str) -> None:
        """Push what a peer lacks. Raises the first error, after what is of other trainings."""
        each = Apart()
        for about in self._incoming.trainings(peer):
            with each.one():
                self._send_of(Mailbox(self._url, about.trajectory), channel, peer)
        each.end()

    def _send_of(self, box: Mailbox, channel: CallChannel, peer: str) -> None:
        self._offer_again(channel, peer, box)
        last, reader = self._delivered.get((peer, box.trajectory), 0), self._incoming.progress(box, peer)
        safe = reader.safe if reader is not None else 0
        for head in box.sent(self._site, last):
            if not isinstance(head, Contribution) and last and head.round > max(last, safe) + 1:
                break  # those between are trained again
            last = head.round
            if not self._deliver(channel, peer, box, head):
                break  # later rounds are too early as well

    def _offer_again(self, channel: CallChannel, peer: str, box: Mailbox) -> None:
        """Every `OFFER_AGAIN_S` offer a peer a few of the messages that it has taken and that are kept, the
        oldest and others in turn: from the first that it lacks they are sent again.
        """
        key, now = (peer, box.trajectory), time.monotonic()
        if now - self._offered.setdefault(key, now) < OFFER_AGAIN_S:
            return
        reader = self._incoming.progress(box, peer)
        safe, delivered = reader.safe if reader is not None else 0, self._delivered.get(key, 0)
        kept = [number for number in box.rounds() if safe < number <= delivered]
        later = [number for number in kept if number > self._asked.get(key, 0)] or kept
        for number in sorted({*kept[:1], *later[:MOST_ASKED]}):
            head = box.read(number, self._site)
            if head is not None and self._is_lacking(channel, peer, head):
                self._delivered[key] = number - 1
                break
        self._asked[key] = max(later[:MOST_ASKED], default=0)
        self._offered[key] = time.monotonic()

    def _deliver(self, channel: CallChannel, peer: str, box: Mailbox, head: Message) -> bool:
        """Send a message, unless the peer does not take it: never, which holds up no other, or not yet, for
        which it is False.
        """

        def refused(error: grpc.RpcError) -> None:
            self._audit.add("not taken", who=peer, why=reason(error), **told(head))
            self._refusals.never(peer, _named(head), error)

        early = partial(self._refusals.early, peer, head.trajectory, _named(head))
        if not is_settled(lambda: self._send(channel, peer, box, head), refused, early):
            return False
        self._refusals.settled(peer, head.trajectory)
        self._delivered[peer, head.trajectory] = head.round
        return True

    def _offset(self, channel: CallChannel, peer: str, head: Message) -> int | None:
        return offered(channel, f"/{self._service}/Offer", head.text, peer)

    def _is_lacking(self, channel: CallChannel, peer: str, head: Message) -> bool:
        found: list[int | None] = [None]
        is_settled(lambda: found.append(self._offset(channel, peer, head)), lambda error: None)
        return found[-1] is not None

    def _send(self, channel: CallChannel, peer: str, box: Mailbox, head: Message) -> None:
        path, refused = _body(box, head), self._refused[peer]
        key = _bytes(head, stamp_of(path))
        if key in refused:  # when it had come; its file is the same
            return
        offset = self._offset(channel, peer, head)
        if offset is not None:
            begin, left = json.dumps(json.loads(head.text) | {"offset": offset}), head.body.bytes - offset
            with self._hourly.admitted(peer, left, offset) as counted:
                began, blocks = time.monotonic(), counted(blocks_of(path, offset))
                try:
                    push(channel, f"/{self._service}/Put", begin.encode(), blocks, head.body.bytes)
                except grpc.RpcError as error:
                    if code_of(error) in NEVER:
                        refused.add(key)
                    raise
                if isinstance(head, Contribution):
                    tell_rate(self._url, peer, left, time.monotonic() - began)
                self._audit.add("sent", who=peer, **told(head))
        else:  # it is there: the answer to the push may have been lost
            self._audit.add_once("sent", peer, **told(head))

    def fetch(self, channel: CallChannel, peer: str) -> None:
        """Fetch what a peer has for this site. Raises the first error, after what is of other trainings."""
        each = Apart()
        known = self._known(peer, each)
        request = json.dumps({"known": known, "took": self._took.pop(peer, None)}).encode()
        answer = channel.unary_unary(f"/{self._service}/Heads")(request, timeout=TIMEOUT_S)
        heads = parse_object(answer, peer, "the heads of messages").get("heads")
        ended: set[str] = set()  # trainings of which no later rounds are fetched now
        for found in heads[:MOST_HEADS] if isinstance(heads, list) else ():
            with each.one():
                head = head_of(json.dumps(found), peer)
                of = head.trajectory
                if of not in ended and self._later[peer].is_due(_bytes(head)):
                    ended.add(of)  # unless this one is taken
                    if self._fetch(channel, peer, head):
                        ended.discard(of)
        each.end()

    def _known(self, peer: str, each: Apart) -> dict[str, int]:
        """The last rounds up to which all messages of a peer are here, or over, by trajectory; of a training
        that is damaged here so many that none is asked for.
        """
        known: dict[str, int] = {}
        for about in self._incoming.trainings(peer):
            known[about.trajectory] = LAST
            with each.one():
                known[about.trajectory] = self._last_of(about.trajectory, peer)
        return known

    def _last_of(self, trajectory: str, peer: str) -> int:
        """The last round up to which all messages of a peer are here, or over; 0 = none."""
        box = Mailbox(self._url, trajectory)
        rounds = box.rounds()
        own = box.progress(self._site)
        last = own.safe if own else min(rounds, default=1) - 1
        for number in rounds:
            if number != last + 1 or not box.has(number, peer):
                break
            last = number
        return last

    def _fetch(self, channel: CallChannel, peer: str, head: Message) -> bool:
        """Fetch a message, unless it is here or over; False when it is too early for it."""
        of = f"fetched {head.trajectory}"
        try:
            offset = self._incoming.offset(head, peer)
        except NotTaken as refused:
            key = _bytes(head)
            if refused.when == "never" and key not in self._refused[peer]:
                self._refused[peer].add(key)
                self._audit.add("refused", who=peer, why=str(refused))
                raise
            if refused.when == "early":
                self._refusals.early(peer, of, _named(head), refused, is_here=True)
            return refused.when != "early"
        self._refusals.settled(peer, of)
        if offset is None:
            return True
        asked = AskedBytes(trajectory=head.trajectory, round=head.round, offset=offset)
        ask, left = channel.unary_stream(f"/{self._service}/Get"), head.body.bytes - offset
        with self._hourly.admitted(peer, left, offset) as counted:
            began = time.monotonic()
            blocks = ask(asked.model_dump_json().encode(), timeout=patience(head.body.bytes))
            try:
                self._take(head, peer, offset, counted(blocks))
            except (NotTaken, grpc.RpcError) as error:
                if is_of_one(error):
                    self._later[peer].failed(_bytes(head), is_damaged=isinstance(error, Damaged))
                raise
        self._later[peer].succeeded(_bytes(head))
        if isinstance(head, Contribution):
            self._took[peer] = (left, time.monotonic() - began)
        return True


def _named(head: Message) -> str:
    return f"round {head.round} of {head.trajectory[:16]}"


def _bytes(head: Message, stamp: Stamp | None = None) -> Bytes:
    return (head.trajectory, head.round, head.body.sha256, stamp)


def _body(box: Mailbox, head: Message) -> Path:
    return local_path(box.folder(head.round, head.site)) / BODY


def told(head: Message) -> dict[str, Json]:
    """What the audit log says of a message."""
    return {
        "kind": head.kind,
        "trajectory": head.trajectory[:16],
        "round": head.round,
        "bytes": head.body.bytes,
        "sha256": head.body.sha256,
    }
