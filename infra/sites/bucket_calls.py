"""Shared by both ends of a call through a bucket: heads of objects, and numbers of calls, so that none is
answered twice.
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
SILENT_S = TIMEOUT_S + MOST / SLOWEST  # after so long without the next object a call is given up
NUMBERS = "calls.txt"  # beside the key: the last start's first number
STRIDE = 1 << 32  # numbers of one start
REST_S = 60.0  # for so long an agent that did not answer is not called
SHORTEST_S, LONGEST_S = 0.005, 0.2  # between two looks for an object


class RequestHead(ObjectHead):
    """Head of each object of a request. The fields after `last` are in the first object only."""

    last: bool = Field(description="no block follows")
    method: str = Field(default="", max_length=40)
    door: str = Field(default="", description="the start of the agent that is called")
    lane: int = Field(default=0, ge=0, lt=AT_ONCE, description="each lane has one call at a time")
    number: int = Field(default=0, ge=0, description="higher than that of each earlier call")


class AnswerHead(ObjectHead):
    """Head of the answer to a request, which is one object."""

    code: str = Field(default="OK", max_length=40)
    details: str = ""


class Calls:
    """Numbers and state of this site's calls through buckets. Numbers rise, also after a restart: they begin
    with the time, or after those of the last start if the clock was set back.
    """

    def __init__(self, keys: Keys) -> None:
        self._keys, self._lock, self._number = keys, threading.Lock(), 0
        self._watches: dict[tuple[str, str], DoorWatch] = {}  # by URL and certificate
        self._silent: dict[tuple[str, str], float] = {}  # until when, by door and own certificate

    def number(self) -> int:
        """The number of the next call."""
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
        """Remember that the agent of a door did not answer this site's certificate."""
        self._silent[about] = time.monotonic() + REST_S

    def is_silent(self, about: tuple[str, str]) -> bool:
        return time.monotonic() < self._silent.get(about, 0.0)

    def watch(self, bucket: Bucket, card: Card) -> DoorWatch:
        """The watch of a peer's door, kept between connections."""
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
    """Wait for the result of `look`. `go_on` is called between two looks, and raises to end the wait."""
    pause = SHORTEST_S
    while (found := look()) is None:
        go_on()
        time.sleep(pause)
        pause = min(LONGEST_S, pause * 1.5)
    return found


def remove_blocks(bucket: Bucket, way: str, name: str, blocks: Iterable[int]) -> None:
    """Remove objects of a call, as long as the bucket answers."""
    try:
        for block in blocks:
            bucket.remove(way, f"{name}.{block}")
    except BucketError:
        return  # they are removed later, by age or when the agent there restarts
