"""Calls to a peer through files of a bucket. A request and the blocks of a body are objects in the peer's
folder, each signed and sealed. The peer removes each as it reads it, and acknowledges all with one object.
"""

import hashlib
import secrets
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain

import grpc

from atelier.engine.config.error import DamageError
from atelier.infra.sites.bucket import IN, MOST, OUT, Bucket, BucketError
from atelier.infra.sites.bucket_calls import (
    SILENT_S,
    WINDOW,
    AnswerHead,
    Calls,
    RequestHead,
    awaited,
    remove_blocks,
    with_last,
)
from atelier.infra.sites.keys import Card, Keys
from atelier.infra.sites.sealed import Context, NotOpened, seal, unseal
from atelier.infra.sites.transfer import CODES, TIMEOUT_S, CallError

DIGESTED = 20e6  # bytes a second at which a peer hashes a body, at least


class BucketLink:
    """Carries calls to the peer of `card` through the bucket at `url`, one at a time in its lane: a later
    call ends an earlier one. `on_refused` gets the reason when an object in the place of an answer is
    refused.
    """

    block = MOST

    def __init__(
        self,
        keys: Keys,
        card: Card,
        url: str,
        calls: Calls,
        on_refused: Callable[[str], None],
        lane: int = 0,
    ) -> None:
        self.keys, self.card, self.bucket = keys, card, Bucket(url, card.digest)
        self._calls, self._on_refused, self.lane = calls, on_refused, lane
        self.watch = calls.watch(self.bucket, card)
        self.is_closed = False

    def ask(self, call: str, request: bytes, blocks: Iterable[bytes], timeout: float) -> bytes:
        with self.errors():
            door = self.watch.nonce()
        about = (door, self.keys.card.digest)
        if self._calls.is_silent(about):
            raise CallError(grpc.StatusCode.UNAVAILABLE, self.unanswered)
        one = _OneCall(self, self._calls.number(), door, time.monotonic() + timeout)
        try:
            return one.run(call, chain((request,), blocks))
        except CallError as error:
            is_late = error.code() == grpc.StatusCode.DEADLINE_EXCEEDED and timeout >= TIMEOUT_S
            if is_late and one.written <= WINDOW:  # the peer has read nothing
                self._calls.note_silent(about)
            raise

    def get(self, request: bytes, timeout: float) -> Generator[bytes, None, None]:
        """Not supported: a peer that is reached through a bucket also sends through it."""
        raise CallError(grpc.StatusCode.UNIMPLEMENTED, "nothing is fetched through a bucket")

    def close(self) -> None:
        self.is_closed = True

    @property
    def unanswered(self) -> str:
        why = "it has not accepted this site's card, or is of another version"
        return f"{self.card.site} does not answer; perhaps {why}"

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn errors of the bucket into CallError."""
        try:
            yield
        except (BucketError, FileNotFoundError) as error:
            raise CallError(grpc.StatusCode.UNAVAILABLE, str(error)) from None
        except (NotOpened, DamageError) as error:
            self._on_refused(f"of {self.bucket.url}: {error}")
            raise CallError(grpc.StatusCode.DATA_LOSS, str(error)) from None


class _OneCall:
    """A call from its first object to its answer."""

    def __init__(self, link: BucketLink, number: int, door: str, end: float) -> None:
        self._link, self._number, self._door, self._end = link, number, door, end
        self._name = secrets.token_hex(16)
        self._digest = ""  # of the first object
        self.written = 0  # objects
        self._moved = time.monotonic()  # when the last object was written

    def run(self, method: str, blocks: Iterable[bytes]) -> bytes:
        link, found = self._link, None
        try:
            for block, is_last in with_last(blocks):
                with link.errors():
                    if (found := self._early()) is not None:
                        break
                    self._write(block, is_last, method)
            # the peer hashes the body before it answers: a large file may take minutes
            self._moved += self.written * MOST / DIGESTED
            with link.errors():
                found = found or awaited(self._answer, self._go_on)
                head, answer = self._opened(found)
        finally:
            self._tidy(is_answered=found is not None)
        if head.code != "OK":
            raise CallError(CODES.get(head.code, grpc.StatusCode.UNKNOWN), head.details)
        return answer

    def _tidy(self, *, is_answered: bool) -> None:
        """Remove unread objects: of a request that was answered early, or of a call that broke off."""
        if self.written > 1 or not is_answered:
            written = range(max(0, self.written - WINDOW - 1), self.written)
            remove_blocks(self._link.bucket, IN, self._name, written)
        remove_blocks(self._link.bucket, OUT, self._name, (0,))

    def _early(self) -> bytes | None:
        """Wait until there is room for the next object. Returns an answer that comes before that."""
        self._go_on()
        return awaited(lambda: self._answer() if self._is_full() else b"", self._go_on) or None

    def _is_full(self) -> bool:
        """Whether `WINDOW` objects are unread."""
        oldest = f"{self._name}.{self.written - WINDOW}"
        return self.written >= WINDOW and self._link.bucket.exists(IN, oldest)

    def _write(self, block: bytes, is_last: bool, method: str) -> None:
        link = self._link
        head = RequestHead(sender=link.keys.card.digest, last=is_last)
        if self.written == 0:
            own = {"method": method, "door": self._door, "lane": link.lane, "number": self._number}
            head = head.model_copy(update=own)
        data = seal(head, block, self._context("request", self.written), link.keys, link.card)
        self._digest = self._digest or hashlib.sha256(data).hexdigest()
        link.bucket.write(data, IN, f"{self._name}.{self.written}")
        self.written, self._moved = self.written + 1, time.monotonic()

    def _context(self, kind: str, block: int) -> Context:
        to = self._link.card.digest if kind == "request" else self._link.keys.card.digest
        about = {"kind": kind, "recipient": to, "call": self._name, "block": block}
        return Context.model_validate(about | {"request": self._digest})

    def _answer(self) -> bytes | None:
        return self._link.bucket.read(OUT, f"{self._name}.0")

    def _opened(self, data: bytes) -> tuple[AnswerHead, bytes]:
        link = self._link
        found = unseal(data, AnswerHead, self._context("answer", 0), link.keys)
        if found.head.sender != link.card.digest:
            raise NotOpened(f"the answer is of {found.peer}, and {link.card.site} was called")
        return found.head, found.body

    def _go_on(self) -> None:
        """Raises CallError after the timeout or too long without progress, or if the link was closed or the
        peer's agent has restarted.
        """
        link = self._link
        if link.is_closed:
            raise CallError(grpc.StatusCode.CANCELLED, f"the calls to {link.card.site} were ended")
        if time.monotonic() > min(self._end, self._moved + SILENT_S):
            raise CallError(grpc.StatusCode.DEADLINE_EXCEEDED, link.unanswered)
        if link.watch.nonce() != self._door:
            text = f"the agent of {link.card.site} was restarted"
            raise CallError(grpc.StatusCode.UNAVAILABLE, text)
