"""The audit log of a site's agent: a line for every message that crossed or was refused. Each line has the
digest of the line before, so a changed or missing line is noticed. From time to time both sites sign the
length of their logs (infra/sites/countersign.py).
"""

import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TypeVar

from atelier.engine.config.base import Json
from atelier.engine.config.document import whole_of
from atelier.engine.config.error import AtelierError, DamageError
from atelier.engine.config.site_name import SITE
from atelier.engine.io.storage import sync_folder
from atelier.infra.sites.incoming import NotTaken
from atelier.infra.sites.last_hour import HOUR_S, LastHour

FIRST = "0" * 64
BROKE_OFF = "broke off"  # `what` of a line about a message that was fetched in part
WAYS = {"sent": "out", "fetched": "out", BROKE_OFF: "out", "received": "in"}  # direction by `what` of a line
SIGNED = "signed"  # `what` of a line with signatures
MOST_MESSAGES = 100_000  # of a kind that are remembered; only recent ones are offered again
REFUSED = ("refused", "not taken")  # `what` of lines about refusals, here or by a peer
MOST_REFUSED, MOST_WHY = 300, 500  # lines about refusals of one site in a minute; letters of each
MOST_LINES = 3000  # of a kind that a peer may cause in a minute
TAIL = 1 << 16  # bytes
STRANGERS = ""  # stands for all unknown callers together
ABOUT = ("trajectory", "round", "order", "path", "sha256")  # of a message, in its line
Thing = TypeVar("Thing")
Message = tuple[Json, ...]  # way, peer, and these
Crossed = dict[str, dict[str, tuple[int, int]]]  # way -> kind -> messages and bytes


@dataclass
class Chain:
    """A chain of lines: how many, the digest of the last, and the messages and bytes that
    crossed, by peer.
    """

    lines: int = 0
    digest: str = FIRST
    crossed: dict[str, Crossed] = field(default_factory=dict)
    signed: dict[str, int] = field(default_factory=dict)  # messages that this site has signed, by peer

    def add(self, line: str, found: Mapping[str, Json]) -> None:
        """Add the next line; `found` is its content."""
        self.lines += 1
        self.digest = hashlib.sha256(line.encode()).hexdigest()
        what, peer, kind = found.get("what"), str(found.get("who", "")), str(found.get("kind", "other"))
        if what == SIGNED:
            self.signed[peer] = max(self.signed.get(peer, 0), _messages_signed(found.get("own")))
        if way := WAYS.get(str(what)):
            kinds = self.crossed.setdefault(peer, {}).setdefault(way, {})
            messages, size = kinds.get(kind, (0, 0))
            kinds[kind] = (messages + 1, size + whole_of(found.get("bytes")))

    def unsigned(self, peer: str) -> int:
        """Messages to and from a peer that are in no statement signed by both."""
        ways = self.crossed.get(peer, {}).values()
        messages = sum(count for kinds in ways for count, _ in kinds.values())
        return max(0, messages - self.signed.get(peer, 0))

    def with_peer(self, peer: str) -> Crossed:
        """A copy of the counts of messages and bytes to and from a peer."""
        return {way: dict(kinds) for way, kinds in self.crossed.get(peer, {}).items()}


def _messages_signed(own: Json) -> int:
    """The number of messages in a site's own statement in a line; 0 if it is invalid."""
    statement = own.get("statement") if isinstance(own, dict) else None
    crossed = statement.get("crossed") if isinstance(statement, dict) else None
    ways = crossed.values() if isinstance(crossed, dict) else ()
    counts = [count for kinds in ways if isinstance(kinds, dict) for count in kinds.values()]
    return sum(whole_of(count[0]) for count in counts if isinstance(count, list) and count)


@dataclass(frozen=True)
class Position:
    """The length of a log, and the counts with one peer, at one moment."""

    lines: int
    digest: str
    crossed: Crossed
    unsigned: int


class Audit:
    """The log at `path`, which is continued."""

    def __init__(self, path: Path) -> None:
        self.path, self._lock = path, threading.Lock()
        self.on_damage: Callable[[str], None] = lambda why: None
        self._complained: dict[str, float] = {}  # when, by text
        self._lines: dict[tuple[str, str], tuple[int, int]] = {}  # by site and kind: a minute, lines in it
        self._cut_at: int | None = None  # bytes of whole lines, while there may be more after them
        cut_last(path)
        self._chain = Chain()
        self._recent = LastHour()
        self._messages: dict[str, dict[Message, None]] = {}  # by kind: the last ones that crossed whole
        for found in read_lines(path, self._chain):
            self._note(found)

    def add(self, what: str, **about: Json) -> None:
        """Append a line: what happened, when, with which site. Raises OSError, and leaves the log unchanged,
        if it cannot be written whole. At most `MOST_REFUSED` lines a minute are kept about refusals of, or
        by, one site, or of all unknown callers together, so that they cannot fill a disk.
        """
        with self._lock:
            if what not in REFUSED:
                self._add(what, about)
                return
            who = str(about.get("who"))
            caller = who if re.fullmatch(SITE, who) else STRANGERS
            number = self._count(caller, what)
            if number <= MOST_REFUSED:
                why = str(about.get("why"))[:MOST_WHY]
                more = "; further refusals in this minute are not logged" if number == MOST_REFUSED else ""
                self._add(what, {**about, "why": why + more})

    def _count(self, who: str, kind: str, more: int = 1) -> int:
        """Count a line and return how many of its kind there are in this minute."""
        minute = int(time.monotonic() // 60)
        before = self._lines.get((who, kind), (minute, 0))
        number = (before[1] if before[0] == minute else 0) + more
        self._lines[who, kind] = (minute, number)
        return number

    def check(self, who: str, kind: str) -> None:
        """Call before an action of a peer that adds a line of this kind. Raises NotTaken (early) if there are
        too many.
        """
        with self._lock:
            if self._count(who, kind, 0) >= MOST_LINES:
                raise NotTaken(f"{MOST_LINES} lines of {kind} of {who} in this minute", "early")

    def _add(self, what: str, about: Mapping[str, Json]) -> None:
        if what in WAYS:
            self._count(str(about.get("who")), str(about.get("kind")))
        found: dict[str, Json] = {"time": round(time.time(), 3), "what": what, **about}
        line = json.dumps(found | {"previous": self._chain.digest})
        self._append(f"{line}\n".encode())
        self._chain.add(line, found)
        self._note(found)

    def _append(self, data: bytes) -> None:
        """Write all of it, or cut off the part that was written; nothing is appended before that succeeds.
        Raises OSError.
        """
        self._cut()
        try:
            with self.path.open("ab", buffering=0) as file:  # closing it writes nothing more
                self._cut_at = file.tell()
                while data:
                    data = data[file.write(data) :]
            self._cut_at = None
        finally:
            with suppress(OSError):
                self._cut()

    def _cut(self) -> None:
        if self._cut_at is not None:
            os.truncate(self.path, self._cut_at)
            self._cut_at = None

    def readable(self, things: Iterable[Thing]) -> Iterator[Thing]:
        """Yield the items of a group until one cannot be read: that error is reported and blocks no group."""
        try:
            yield from things
        except (AtelierError, OSError) as error:
            self.complain(str(error))

    def complain(self, why: str) -> None:
        """Log damage at this site that affects a peer, and pass it to `on_damage`: the same once an hour, at
        most `MOST_REFUSED` lines a minute.
        """
        now, why = time.monotonic(), why[:MOST_WHY]
        with self._lock:
            if now - self._complained.get(why, -HOUR_S) < HOUR_S:
                return
            if self._count("", "damaged") > MOST_REFUSED:
                return
            self._complained[why] = now
            self._complained = {each: at for each, at in self._complained.items() if now - at < HOUR_S}
            self._add("damaged", {"why": why})
        self.on_damage(why)

    def add_once(self, what: str, who: str, **about: Json) -> None:
        """Add a line for a message that has crossed, unless there is one: after a kill or a lost answer it
        may be missing.
        """
        with self._lock:
            if (WAYS[what], who, *(about.get(word) for word in ABOUT)) not in self._known(about):
                self._add(what, {"who": who, **about})

    def _known(self, about: Mapping[str, Json]) -> dict[Message, None]:
        """The remembered messages of this kind."""
        return self._messages.setdefault(str(about.get("kind")), {})

    def _note(self, found: Mapping[str, Json]) -> None:
        what = str(found.get("what"))
        if what in WAYS and what != BROKE_OFF and "sha256" in found:
            known = self._known(found)
            known[WAYS[what], found.get("who"), *(found.get(word) for word in ABOUT)] = None
            if len(known) > MOST_MESSAGES:
                del known[next(iter(known))]
        at, size = found.get("time"), whole_of(found.get("bytes"))
        if found.get("what") in WAYS and size and isinstance(at, float | int):
            self._recent.add(str(found.get("who", "")), size, float(at))

    def last_hour(self, peer: str) -> int:
        """Bytes that have crossed to and from a peer in the last hour."""
        with self._lock:
            return self._recent.of(peer)

    def given(self, blocks: Iterable[bytes], left: int, who: str, **about: Json) -> Iterator[bytes]:
        """Pass on blocks of `left` bytes together, and log the bytes passed on, also if the reader stops
        early. If `left` is 0, there is at most one line for the message. Raises NotTaken as `check`.
        """
        self.check(who, str(about.get("kind")))
        count = 0
        try:
            for block in blocks:
                count += len(block)
                yield block
        finally:
            if count:
                self.add("fetched" if count == left else BROKE_OFF, who=who, **about | {"bytes": count})
            elif left == 0:
                self.add_once("fetched", who, **about | {"bytes": 0})

    def position(self, peer: str) -> Position:
        """The current position of the log."""
        with self._lock:
            chain = self._chain
            return Position(chain.lines, chain.digest, chain.with_peer(peer), chain.unsigned(peer))

    def sync(self) -> None:
        """Flush all lines to disk, so that signed lines survive a power cut."""
        if self.path.exists():
            with self.path.open("rb") as file:
                os.fsync(file.fileno())
            sync_folder(self.path.parent)


def cut_last(path: Path) -> None:
    """Cut off an incomplete last line, after a power cut or a full disk."""
    if path.exists():
        with path.open("r+b") as file:
            size = whole_lines(file)
            if size < file.seek(0, os.SEEK_END):
                file.truncate(size)


def whole_lines(file: IO[bytes]) -> int:
    """Bytes of a file's complete lines; reads only its end."""
    end = file.seek(0, os.SEEK_END)
    while end:
        begin = max(0, end - TAIL)
        file.seek(begin)
        if (last := file.read(end - begin).rfind(b"\n")) >= 0:
            return begin + last + 1
        end = begin
    return 0


def read_lines(path: Path, chain: Chain) -> Iterator[dict[str, Json]]:
    """The content of each line, in order; `chain` is kept up to date. Raises DamageError naming the first
    line that does not follow from the one before.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, data in enumerate(file, start=1):
            try:
                line = data.decode().removesuffix("\n")
                found = json.loads(line)
            except ValueError:
                raise DamageError(
                    f"{path}:{number}: not a line of an audit log; move the file away"
                ) from None
            if not isinstance(found, dict) or found.get("previous") != chain.digest:
                raise DamageError(
                    f"{path}:{number}: does not follow from the line before; move the file away"
                )
            chain.add(line, found)
            yield found
