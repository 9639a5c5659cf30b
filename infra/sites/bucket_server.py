"""Answer calls through a bucket: look for requests in this site's folder and acknowledge each with one
object. The sender of each object is verified. Other objects are refused or ignored.
"""

import hashlib
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import grpc

from atelier.engine.config.error import DamageError
from atelier.engine.config.site_name import NOBODY
from atelier.engine.io.storage import is_local
from atelier.infra.sites.audit import Audit
from atelier.infra.sites.bucket import (
    BEAT_S,
    DEAD_S,
    IN,
    OUT,
    Beacon,
    Bucket,
    BucketError,
    new_start,
    publish,
)
from atelier.infra.sites.bucket_calls import (
    SHORTEST_S,
    SILENT_S,
    WINDOW,
    AnswerHead,
    RequestHead,
    awaited,
    remove_blocks,
)
from atelier.infra.sites.exchange import SiteExchange
from atelier.infra.sites.keys import Keys
from atelier.infra.sites.refusals import ending
from atelier.infra.sites.sealed import Context, NotOpened, Opened, seal, unseal
from atelier.infra.sites.transfer import THREADS, CallError

PUSHED = ("Offer", "Put")  # the calls of a link on which both sides send
LOCAL_S, REMOTE_S = 0.1, 1.0  # the longest pause between two looks for requests
AGAIN_S = 2.0  # after an object that could not be read
CODES = grpc.StatusCode


class _Ended(Exception):
    """The caller has given up a call."""


@dataclass
class _Answering:
    """A call that is being answered."""

    name: str
    request: str  # digest of its first object
    first: Opened[RequestHead]
    block: int = 0  # the last one that was read
    is_read: bool = False  # all of the request
    is_over: threading.Event = field(default_factory=threading.Event)


class BucketServer:
    """Answers the calls of an exchange for the site of `keys` in the bucket `url`."""

    def __init__(self, keys: Keys, audit: Audit, exchange: SiteExchange, url: str) -> None:
        self._keys, self._audit, self._exchange, self._url = keys, audit, exchange, url
        self._nonce, self._beat, self._beaten = new_start(), 0, -1e9
        self._bucket = Bucket(url, keys.card.digest)
        self._longest = LOCAL_S if is_local(url) else REMOTE_S
        self._lock = threading.Lock()  # guards the state of calls
        self._begun: set[str] = set()  # calls that are answered, or about to be
        self._answering: dict[tuple[str, int], _Answering] = {}  # by the certificate of a peer and lane
        self._taken: dict[tuple[str, int], int] = {}  # the last number, by the same
        self._seen: dict[str, dict[tuple[str, int], float]] = {IN: {}, OUT: {}}  # since when objects wait
        self._not_before: dict[str, float] = {}  # when a call is looked at again
        self._old_at = time.monotonic()  # the last look for answers that no peer took
        self._problems: deque[str] = deque(maxlen=8)  # of calls, not yet reported
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="bucket")
        self._thread = threading.Thread(target=self._watch, name="bucket", daemon=True)
        self._problem = ""  # with the bucket, at the last look

    def start(self) -> None:
        """Remove objects of an earlier start, publish the door, and look for requests. Raises BucketError."""
        for digest, (site, _) in self._keys.certificates.items():
            if site == self._keys.card.site:  # those before a rotation, too
                Bucket(self._url, digest).clear()
        self._say_alive()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        with self._lock:
            for call in self._answering.values():
                call.is_over.set()
        self._pool.shutdown(cancel_futures=True)
        try:
            self._bucket.clear()
        except BucketError:
            return  # the next start removes it

    def check(self) -> None:
        """Raises BucketError for a problem with a call or with the bucket."""
        problem = self._problems.popleft() if self._problems else self._problem
        if problem:
            raise BucketError(problem)

    # looking

    def _watch(self) -> None:
        pause = SHORTEST_S
        while not self._stop.wait(pause):
            try:
                self._say_alive()
                is_new, self._problem = self._look(), ""
            except Exception as error:  # whatever it is, the loop continues
                is_new, self._problem = False, str(error)
            pause = SHORTEST_S if is_new else min(self._longest, pause * 1.5)

    def _say_alive(self) -> None:
        card, now = self._keys.card, time.monotonic()
        if now - self._beaten < BEAT_S:
            return
        if Bucket(self._url, card.digest).place != self._bucket.place:  # the certificate has changed
            self._bucket.clear()
            self._bucket = Bucket(self._url, card.digest)
        self._bucket.make()  # it may have been removed
        self._beat, self._beaten = self._beat + 1, now
        door = Beacon(certificate=card.digest, nonce=self._nonce, beat=self._beat)
        publish(self._bucket, door, self._keys)

    def _look(self) -> bool:
        """Begin to answer new requests; returns whether there are any. Remove old objects."""
        now, is_new = time.monotonic(), False
        ways = (IN, OUT) if now - self._old_at > SILENT_S / 8 else (IN,)
        for way in ways:
            blocks = self._bucket.blocks(way)
            self._seen[way] = {each: self._seen[way].get(each, now) for each in blocks}
            for name, block in blocks:
                with self._lock:
                    is_begun = name in self._begun
                if is_begun:
                    continue
                if now - self._seen[way][name, block] > SILENT_S:
                    self._bucket.remove(way, f"{name}.{block}")
                elif way == IN and block == 0 and now >= self._not_before.get(name, now):
                    is_new = True
                    with self._lock:
                        self._begun.add(name)
                    self._pool.submit(self._answer, name)
        if OUT in ways:
            self._old_at = now
        with self._lock:
            self._not_before = {name: at for name, at in self._not_before.items() if at > now}
        return is_new

    # answering

    def _answer(self, name: str) -> None:
        try:
            call = self._accepted(name)
            if call is not None:
                self._work(call)
        except Exception as error:  # whatever one call causes, the others continue
            self._problems.append(f"a call in the bucket: {error}")
            with self._lock:
                self._not_before[name] = time.monotonic() + AGAIN_S
        finally:
            with self._lock:
                self._begun.discard(name)
                self._answering = {key: one for key, one in self._answering.items() if one.name != name}

    def _accepted(self, name: str) -> _Answering | None:
        """The call that an object begins; None if the object is gone or refused."""
        place = f"{name}.0"
        try:
            data = self._bucket.read(IN, place)
            if data is None:
                return None
            self._bucket.remove(IN, place)
            context = Context(kind="request", recipient=self._keys.card.digest, call=name, block=0)
            first = unseal(data, RequestHead, context, self._keys)
            call = _Answering(name, _digest(data), first)
            self._begin(call)
        except (NotOpened, DamageError) as error:
            who = (error.sender if isinstance(error, NotOpened) else "") or NOBODY
            self._audit.add("refused", who=who, why=f"a request in the bucket: {error}")
            blocks = [block for each, block in self._bucket.blocks(IN) if each == name]
            remove_blocks(self._bucket, IN, name, blocks)
            return None
        return call

    def _begin(self, call: _Answering) -> None:
        """Accept a new call and end the one before it in its lane. Raises NotOpened for an old call."""
        head, peer = call.first.head, call.first.peer
        if head.door != self._nonce:
            raise NotOpened("it is for another start of this agent", peer)
        with self._lock:
            lane = (head.sender, head.lane)
            if head.number <= self._taken.get(lane, 0):
                raise NotOpened("it, or a later one, was taken before", peer)
            self._taken[lane] = head.number
            if lane in self._answering:
                self._answering[lane].is_over.set()
            self._answering[lane] = call

    def _work(self, call: _Answering) -> None:
        peer = call.first.peer
        try:
            if call.first.head.method not in PUSHED:
                raise CallError(CODES.UNIMPLEMENTED, "there is no such call through a bucket")
            answers = self._exchange.answer(call.first.head.method, self._requests(call), peer)
            self._put(call, CODES.OK, answer=next(answers, b""))
        except _Ended as error:
            if not call.is_over.is_set():  # otherwise the caller does not wait
                self._put(call, CODES.CANCELLED, str(error))
        except BucketError as error:
            self._fail(call, str(error))
            raise
        except Exception as error:
            found = ending(error, peer, self._audit)
            self._put(call, found.code(), found.details())
        finally:
            left = range(call.block + 1, call.block + WINDOW + 2)
            remove_blocks(self._bucket, IN, call.name, left if not call.is_read else ())

    def _fail(self, call: _Answering, problem: str) -> None:
        """Report to the caller that the bucket failed, as soon as it works again. If that takes long, the
        peer sees that the door does not change.
        """
        until = time.monotonic() + DEAD_S
        while not self._stop.wait(SHORTEST_S) and time.monotonic() < until:
            try:
                return self._put(call, CODES.UNAVAILABLE, problem)
            except BucketError:
                self._stop.wait(AGAIN_S)

    def _requests(self, call: _Answering) -> Iterator[bytes]:
        """The blocks of a request, as its objects arrive."""
        opened = call.first
        yield opened.body
        while not opened.head.last:
            opened = self._next(call)
            yield opened.body
        call.is_read = True

    def _next(self, call: _Answering) -> Opened[RequestHead]:
        """The next object of a request. Raises _Ended, CallError for a refused one, BucketError."""
        block, until = call.block + 1, time.monotonic() + SILENT_S
        place = f"{call.name}.{block}"

        def go_on() -> None:
            self._go_on(call)
            if time.monotonic() > until:
                raise _Ended("the rest of the request did not arrive")

        try:
            data = awaited(lambda: self._bucket.read(IN, place), go_on)
            about = {"kind": "request", "recipient": self._keys.card.digest, "call": call.name}
            context = Context.model_validate(about | {"block": block, "request": call.request})
            opened = unseal(data, RequestHead, context, self._keys)
            if opened.head.sender != call.first.head.sender:
                raise NotOpened(f"it is of {opened.peer}, in a call of {call.first.peer}")
        except (NotOpened, DamageError) as error:
            who = (error.sender if isinstance(error, NotOpened) else "") or NOBODY
            self._audit.add("refused", who=who, why=f"object {block} of a request in the bucket: {error}")
            raise CallError(CODES.DATA_LOSS, f"object {block} of the request: {error}") from None
        finally:
            remove_blocks(self._bucket, IN, call.name, (block,))
        call.block = block
        return opened

    def _go_on(self, call: _Answering) -> None:
        """Raises _Ended if the peer has given up a call, or is no longer trusted."""
        if call.is_over.is_set() or self._stop.is_set():
            raise _Ended("the call is over")
        card = self._keys.peers.get(call.first.peer)
        if card is None or card.digest != call.first.card.digest:
            raise _Ended("no longer trusted")

    def _put(self, call: _Answering, code: grpc.StatusCode, details: str = "", answer: bytes = b"") -> None:
        head = AnswerHead(sender=self._keys.card.digest, code=code.name, details=details[:2000])
        about = {"kind": "answer", "recipient": call.first.card.digest, "call": call.name}
        context = Context.model_validate(about | {"block": 0, "request": call.request})
        data = seal(head, answer, context, self._keys, call.first.card)
        self._bucket.write(data, OUT, f"{call.name}.0")


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
