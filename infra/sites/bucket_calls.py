"""What both ends of a call through a bucket have: what its objects say, and the numbers of calls, by which
none is answered twice.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator

from pydantic import Field

from atelier.engine.io.storage import write_bytes
from atelier.infra.sites.bucket import MOST, Bucket, BucketError, DoorWatch
from atelier.infra.sites.keys import Card, Keys
from atelier.infra.sites.sealed import ObjectHead
from atelier.infra.sites.transfer import AT_ONCE, SLOWEST, TIMEOUT_S

WINDOW = 8  # objects of a call that wait to be read
SILENT_S = TIMEOUT_S + MOST / SLOWEST  # without the next object a call is given up
NUMBERS = "calls.txt"  # beside the key: the last start's first number
STRIDE = 1 << 32  # numbers of one start
REST_S = 60.0  # for which an agent that did not answer is not asked
SHORTEST_S, LONGEST_S = 0.005, 0.2  # between two looks for an object


class RequestHead(ObjectHead):
    """Of a request, whose blocks follow; all but the first object leave out what only that one has to say."""

    last: bool = Field(description="no block follows")
    method: str = Field(default="", max_length=40)
    door: str = Field(default="", description="the start of the agent that is asked")
    lane: int = Field(default=0, ge=0, lt=AT_ONCE, description="in which one call goes on at a time")
    number: int = Field(default=0, ge=0, description="higher than that of each earlier call")


class AnswerHead(ObjectHead):
    """Of the answer to a request, which is one object."""

    code: str = Field(default="OK", max_length=40)
    details: str = ""


class Calls:
    """The calls of this site through buckets. Numbers rise, from start to start as well: they begin with the
    time, or after those of the last start where the clock was set back.
    """

    def __init__(self, keys: Keys) -> None:
        self._keys, self._lock, self._number = keys, threading.Lock(), 0
        self._watches: dict[tuple[str, str], DoorWatch] = {}  # by URL and certificate
        self._silent: dict[tuple[str, str], float] = {}  # until when, by door and own certificate

    def number(self) -> int:
        """Of the next call."""
        with self._lock:
            if self._number == 0:
                path = self._keys.folder / NUMBERS
                text = path.read_bytes().strip() if path.exists() else b""
                before = int(text) if text.isdigit() else 0  # damaged: the time alone
                self._number = max(before + STRIDE, time.time_ns())
                write_bytes(str(path), f"{self._number}\n".encode())
            self._number += 1
            return self._number

    def note_silent(self, about: tuple[str, str]) -> None:
        """The agent of a door did not answer this site with its certificate."""
        self._silent[about] = time.monotonic() + REST_S

    def is_silent(self, about: tuple[str, str]) -> bool:
        return time.monotonic() < self._silent.get(about, 0.0)

    def watch(self, bucket: Bucket, card: Card) -> DoorWatch:
        """Kept from connection to connection: an agent that is away is known to be."""
        return self._watches.setdefault((bucket.url, card.digest), DoorWatch(bucket, card))


def with_last(blocks: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Each block, and whether it is the last one."""
    found = iter(blocks)
    block = next(found, b"")
    for later in found:
        yield block, False
        block = later
    yield block, True


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


def remove_blocks(bucket: Bucket, way: str, name: str, blocks: Iterable[int]) -> None:
    """Remove objects of a call as far as the bucket answers."""
    try:
        for block in blocks:
            bucket.remove(way, f"{name}.{block}")
    except BucketError:
        return  # they are removed when the agent there begins anew, or by their age
