"""Calls to a peer whose agent answers in a bucket: with the methods of gRPC's channel that agents use, so
that whatever is said over a port is said in the same words through objects. A request and its answer are
objects of at most 4 MiB of messages, each signed and sealed.
"""

import hashlib
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import partial

import grpc

from atelier.engine.config.error import AtelierError, DamageError
from atelier.infra.sites.bucket import IN, MOST, OUT, Bucket, BucketError
from atelier.infra.sites.bucket_calls import (
    SILENT_S,
    WINDOW,
    AnswerHead,
    Call,
    Calls,
    RequestHead,
    awaited,
    grouped,
    only,
    remove_blocks,
    wait_for_room,
)
from atelier.infra.sites.keys import Card, Keys
from atelier.infra.sites.sealed import Context, NotOpened, Opened, seal, unseal
from atelier.infra.sites.transfer import TIMEOUT_S, CallError

CODES = {code.name: code for code in grpc.StatusCode}
DIGESTED = 20e6  # bytes a second that a peer reads again at least


class BucketChannel:
    """Carries calls to the peer of `card`, in the bucket that is its address. `on_refused` gets what was put
    into its answers' place and is not taken.
    """

    def __init__(self, keys: Keys, card: Card, calls: Calls, on_refused: Callable[[str], None]) -> None:
        self._keys, self._card, self._calls, self._on_refused = keys, card, calls, on_refused
        self._bucket = Bucket(card.address, card.digest)
        self._watch = calls.watch(self._bucket, card)
        self._is_closed = False

    def unary_unary(self, method: str) -> Callable[..., bytes]:
        def ask(request: bytes, timeout: float) -> bytes:
            return self._one_answer(method, (request,), timeout)

        return ask

    def stream_unary(self, method: str) -> Callable[..., bytes]:
        return partial(self._one_answer, method)

    def unary_stream(self, method: str) -> Callable[..., Iterator[bytes]]:
        def ask(request: bytes, timeout: float) -> Iterator[bytes]:
            return self._call(method, (request,), timeout)

        return ask

    def close(self) -> None:
        """Its calls end."""
        self._is_closed = True

    def _one_answer(self, method: str, requests: Iterable[bytes], timeout: float) -> bytes:
        with closing(self._call(method, requests, timeout)) as answers:
            return only(answers, grpc.StatusCode.INTERNAL, "answer to a request")

    def _call(self, method: str, requests: Iterable[bytes], timeout: float) -> Generator[bytes, None, None]:
        """The answers to a call. Raises CallError."""
        with self._errors():
            door = self._watch.nonce()
        about = (door, self._keys.card.digest)
        if self._calls.is_silent(about):
            raise CallError(grpc.StatusCode.UNAVAILABLE, self._unanswered)
        with self._calls.opened(self._card.site) as call:
            one = _OneCall(self, call, door, time.monotonic() + timeout)
            try:
                yield from one.run(method.rpartition("/")[2], requests)
            except CallError as error:
                is_late = error.code() == grpc.StatusCode.DEADLINE_EXCEEDED and timeout >= TIMEOUT_S
                if is_late and not one.is_taken:
                    self._calls.note_silent(about)
                raise

    @property
    def _unanswered(self) -> str:
        return f"{self._card.site} does not answer; perhaps it has not accepted this site's card"

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """As errors of a call."""
        try:
            yield
        except (BucketError, FileNotFoundError) as error:
            raise CallError(grpc.StatusCode.UNAVAILABLE, str(error)) from None
        except (NotOpened, DamageError) as error:
            self._on_refused(f"of {self._card.address}: {error}")
            raise CallError(grpc.StatusCode.DATA_LOSS, str(error)) from None


class _OneCall:
    """A call from its first object to the last one of its answer."""

    def __init__(self, channel: BucketChannel, call: Call, door: str, end: float) -> None:
        self._channel, self._call, self._door, self._end = channel, call, door, end
        self._bucket, self._card, self._keys = channel._bucket, channel._card, channel._keys
        self._digest = ""  # of the first object
        self._written = self._read = 0  # objects
        self._is_answered = False
        self._moved = time.monotonic()  # when an object was written or found last

    @property
    def is_taken(self) -> bool:
        """Whether the peer is known to have read something of it."""
        return self._read > 0 or self._written > WINDOW

    def run(self, method: str, requests: Iterable[bytes]) -> Iterator[bytes]:
        try:
            with self._channel._errors():
                first = self._ask(method, requests)
            while not self._is_answered:
                with self._channel._errors():
                    self._go_on()  # also where objects come one after another
                    answer = self._opened(first or awaited(self._answer, self._go_on))
                first, self._read, self._is_answered = None, self._read + 1, answer.head.last
                self._moved = time.monotonic()
                yield from answer.messages()
                if answer.head.code != "OK":
                    code = CODES.get(answer.head.code, grpc.StatusCode.UNKNOWN)
                    raise CallError(code, answer.head.details)
        finally:
            self._tidy()

    def _ask(self, method: str, requests: Iterable[bytes]) -> bytes | None:
        """Write the request; the first object of an answer that came before all of it was taken."""
        early: list[bytes] = []

        def go_on() -> None:
            self._go_on()
            if (found := self._answer()) is not None:
                early.append(found)
                raise _Answered

        for block, (messages, is_last) in enumerate(grouped(requests)):
            try:
                wait_for_room(self._bucket, IN, self._call.name, block, go_on)
            except _Answered:
                return early[0]
            self._go_on()
            self._write(block, messages, is_last, method)
        # the peer reads again what it has got before it answers: a large file may take minutes
        self._moved += self._written * MOST / DIGESTED
        return None

    def _write(self, block: int, messages: list[bytes], is_last: bool, method: str) -> None:
        own = {"sender": self._keys.card.digest, "parts": [len(one) for one in messages], "last": is_last}
        if block == 0:
            call = self._call
            own |= {"method": method, "door": self._door, "open": call.open}
            own |= {"since": call.since, "number": call.number}
        head = RequestHead.model_validate(own)
        data = seal(head, b"".join(messages), self._context("request", block), self._keys, self._card)
        self._digest = self._digest or hashlib.sha256(data).hexdigest()
        self._written = block + 1
        self._bucket.write(data, IN, f"{self._call.name}.{block}")
        self._moved = time.monotonic()

    def _context(self, kind: str, block: int) -> Context:
        to = self._card.digest if kind == "request" else self._keys.card.digest
        about = {"kind": kind, "recipient": to, "call": self._call.name, "block": block}
        return Context.model_validate(about | {"request": self._digest})

    def _answer(self) -> bytes | None:
        return self._bucket.read(OUT, f"{self._call.name}.{self._read}")

    def _opened(self, data: bytes) -> Opened[AnswerHead]:
        self._bucket.remove(OUT, f"{self._call.name}.{self._read}")
        found = unseal(data, AnswerHead, self._context("answer", self._read), self._keys)
        if found.head.sender != self._card.digest:
            raise NotOpened(f"the answer is of {found.peer}, and {self._card.site} was asked")
        return found

    def _go_on(self) -> None:
        """Raises CallError when the time is over, or nothing has moved for long, the channel was closed, or
        the agent that was asked does not run any more.
        """
        if self._channel._is_closed:
            raise CallError(grpc.StatusCode.CANCELLED, f"the calls to {self._card.site} were ended")
        if time.monotonic() > min(self._end, self._moved + SILENT_S):
            raise CallError(grpc.StatusCode.DEADLINE_EXCEEDED, self._channel._unanswered)
        if self._channel._watch.nonce() != self._door:
            text = f"the agent of {self._card.site} began anew"
            raise CallError(grpc.StatusCode.UNAVAILABLE, text)

    def _tidy(self) -> None:
        """Remove what was not taken: of a request that was answered early, and of a call that broke off."""
        if self._written > 1 or not self._is_answered:
            written = range(max(0, self._written - WINDOW - 1), self._written)
            remove_blocks(self._bucket, IN, self._call.name, written)
        if not self._is_answered:
            answers = range(self._read, self._read + WINDOW + 1)
            remove_blocks(self._bucket, OUT, self._call.name, answers)


class _Answered(AtelierError):
    """An answer came before the whole request was taken."""
