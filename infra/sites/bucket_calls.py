"""What both ends of a call through a bucket have: what its objects say, how messages are put into objects,
and the numbers of calls, by which none is answered twice.
"""

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc
from pydantic import Field

from atelier.engine.io.storage import write_bytes
from atelier.infra.sites.bucket import MOST, Bucket, BucketError, DoorWatch
from atelier.infra.sites.keys import Card, Keys
from atelier.infra.sites.sealed import ObjectHead
from atelier.infra.sites.transfer import SLOWEST, TIMEOUT_S, CallError

WINDOW = 8  # objects of a call that wait to be read
SILENT_S = TIMEOUT_S + MOST / SLOWEST  # without the next object a call is given up
NUMBERS = "calls.txt"  # beside the key: the last start's first number
STRIDE = 1 << 32  # numbers of one start
LATE = 1024  # a call is taken if it is at most so many numbers behind the last one
REST_S = 60.0  # for which an agent that did not answer is not asked
SHORTEST_S, LONGEST_S = 0.005, 0.2  # between two looks for an object


class RequestHead(ObjectHead):
    """Of a request; all but the first object of a call leave out what only that one has to say."""

    method: str = Field(default="", max_length=40)
    door: str = Field(default="", description="the start of the agent that is asked")
    since: int = Field(default=0, ge=0, description="the first number of the asking agent's start")
    number: int = Field(default=0, ge=0)
    open: tuple[str, ...] = Field(default=(), max_length=64, description="earlier calls that go on")


class AnswerHead(ObjectHead):
    """Of an answer."""

    code: str = Field(default="OK", max_length=40)
    details: str = ""


@dataclass(frozen=True)
class Call:
    """A call that is made: its name in the bucket, its number, and which others of the peer go on."""

    name: str
    since: int
    number: int
    open: tuple[str, ...]


class Calls:
    """The calls of this site through buckets. Numbers rise, from start to start as well: they begin with the
    time, or after those of the last start where the clock was set back.
    """

    def __init__(self, keys: Keys) -> None:
        self._keys, self._lock = keys, threading.Lock()
        self._since = self._number = 0
        self._open: dict[str, list[str]] = {}  # by peer
        self._watches: dict[tuple[str, str], DoorWatch] = {}  # by URL and certificate
        self._silent: dict[tuple[str, str], float] = {}  # until when, by door and own certificate

    @contextmanager
    def opened(self, peer: str) -> Iterator[Call]:
        """A new call to a peer, which goes on until the block ends."""
        name = secrets.token_hex(16)
        with self._lock:
            self._begin()
            self._number += 1
            going_on = self._open.setdefault(peer, [])
            call = Call(name, self._since, self._number, tuple(going_on))
            going_on.append(name)
        try:
            yield call
        finally:
            with self._lock:
                going_on.remove(name)

    def _begin(self) -> None:
        if self._since == 0:
            path = self._keys.folder / NUMBERS
            text = path.read_bytes().strip() if path.exists() else b""
            before = int(text) if text.isdigit() else 0  # damaged: the time alone
            self._since = self._number = max(before + STRIDE, time.time_ns())
            write_bytes(str(path), f"{self._since}\n".encode())

    def note_silent(self, about: tuple[str, str]) -> None:
        """The agent of a door did not answer this site with its certificate."""
        self._silent[about] = time.monotonic() + REST_S

    def is_silent(self, about: tuple[str, str]) -> bool:
        return time.monotonic() < self._silent.get(about, 0.0)

    def watch(self, bucket: Bucket, card: Card) -> DoorWatch:
        """Kept from connection to connection: an agent that is away is known to be."""
        return self._watches.setdefault((bucket.url, card.digest), DoorWatch(bucket, card))


@dataclass
class Taken:
    """The numbers of a peer's calls that were taken."""

    since: int = 0
    highest: int = 0
    late: set[int] = field(default_factory=set)

    def problem(self, since: int, number: int) -> str:
        """Take a number; '' or why it is not taken."""
        if since < self.since:
            return "it is of a former start of that site's agent"
        if since > self.since:
            self.since, self.highest, self.late = since, since, set()
        if number <= self.highest - LATE or number in self.late or number <= since:
            return "it was taken before"
        self.late.add(number)
        if number > self.highest:
            self.highest = number
            self.late = {one for one in self.late if one > number - LATE}
        return ""


def grouped(messages: Iterable[bytes]) -> Iterator[tuple[list[bytes], bool]]:
    """Messages by object, and whether it is the last: as many in each as `MOST` bytes hold. At least one
    object. Raises CallError for a message of more.
    """
    group: list[bytes] = []
    size = 0
    for message in messages:
        if len(message) > MOST:
            text = f"a message of {len(message)} bytes, at most {MOST} are carried"
            raise CallError(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        if size + len(message) > MOST:
            yield group, False
            group, size = [], 0
        group.append(message)
        size += len(message)
    yield group, True


def only(messages: Iterator[bytes], code: grpc.StatusCode, what: str) -> bytes:
    """The one message of a call, of at most `MOST` bytes. Raises CallError for none, and at the second:
    what follows is not read.
    """
    first: bytes | None = None
    for message in messages:
        if first is not None:
            raise CallError(code, f"more than one {what}, one is taken")
        first = message
    if first is None:
        raise CallError(code, f"no {what}, one is taken")
    return first


def awaited(look: Callable[[], bytes | None], go_on: Callable[[], None]) -> bytes:
    """What `look` finds at last; `go_on` is called between two looks, and raises where it is not waited any
    more.
    """
    pause = SHORTEST_S
    while (found := look()) is None:
        go_on()
        time.sleep(pause)
        pause = min(LONGEST_S, pause * 1.5)
    return found


def wait_for_room(bucket: Bucket, way: str, name: str, block: int, go_on: Callable[[], None]) -> None:
    """Wait until at most `WINDOW` objects of a call lie there unread."""
    if block >= WINDOW:
        place = f"{name}.{block - WINDOW}"
        awaited(lambda: None if bucket.exists(way, place) else b"", go_on)


def remove_blocks(bucket: Bucket, way: str, name: str, blocks: Iterable[int]) -> None:
    """Remove objects of a call as far as the bucket answers."""
    try:
        for block in blocks:
            bucket.remove(way, f"{name}.{block}")
    except BucketError:
        return  # they are removed when the agent there begins anew, or by their age
