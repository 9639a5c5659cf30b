"""Leases on the right to write: an append-only log per address, one exclusive create per entry. The entry's
number is the fence.

`take` and `release` pass the right to write on; `publish` ends it: the first publication is final. A holder
renews its lease with a counter file; a waiter measures its silence by its own monotonic clock, so clock jumps
steal no lease. The counter file also names processes that write for the holder: a dead holder counts as gone
only when they are gone. The holder of an unreadable entry is unknown: only silence frees it.
"""

import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from atelier.engine.config.base import Json
from atelier.engine.config.document import opened, sealed
from atelier.engine.config.error import AtelierError, DamageError, StoppedError
from atelier.engine.io.storage import (
    exists,
    has_exclusive_create,
    join,
    names,
    read_bytes,
    remove,
    write_bytes,
)
from atelier.infra.store.conditional_create import create_exclusive

LOG = "log"
EXPIRY_S = 60.0
BEAT_S = 5.0
POLL_S = 0.3
MOST_BYTES = 16 << 20  # of an entry, which may hold a record
ENTRY = re.compile(r"([0-9]{6})\.json")
WRITER = re.compile(r" ([0-9]{1,10}):([0-9]{0,20})")  # in a counter file: pid and start time
UNSEALED = frozenset(("act", "holder", "time", "record"))  # keys of an older entry without a digest


ACTS = ("take", "release", "publish")


class LeaseLost(AtelierError):
    """Another holder has taken over; nothing may be published."""


TEXTS = ("host", "boot", "started", "what")


@dataclass(frozen=True)
class Holder:
    """Identity of the process that holds a lease; `what` describes its work."""

    host: str
    boot: str
    pid: int
    started: str
    what: str = ""

    @staticmethod
    def read(document: Json) -> "Holder":
        """Parse the stored `vars` of a holder. Raises ValueError if it is invalid."""
        if not isinstance(document, dict):
            raise ValueError("the holder is not an object")
        known = {"what": "", **document}
        texts = {key: text for key in TEXTS if isinstance(text := known.get(key), str)}
        if len(texts) < len(TEXTS) or {*document} - {*TEXTS, "pid"}:
            raise ValueError("the holder has other fields than a holder")
        pid = document.get("pid")
        if not isinstance(pid, int) or isinstance(pid, bool) or not 0 < pid < 1 << 31:
            raise ValueError("the holder's pid is invalid")
        return Holder(pid=pid, **texts)

    @staticmethod
    def me(what: str = "") -> "Holder":
        return Holder.of(os.getpid(), what)

    @staticmethod
    def of(pid: int, what: str = "") -> "Holder":
        """The process `pid` of this host."""
        return Holder(
            host=socket.gethostname(), boot=_boot(), pid=pid, started=_started(pid) or "", what=what
        )

    def is_gone(self) -> bool:
        """True when this holder was a process of this host and has ended; False when alive or unknown."""
        if self.host != socket.gethostname() or self.boot != _boot():
            return False
        return _started(self.pid) != self.started

    def is_here(self) -> bool:
        """True for a living process that is visible from here."""
        is_seen = (self.host, self.boot) == (socket.gethostname(), _boot())
        return is_seen and _started(self.pid) == self.started

    def is_over(self) -> bool:
        """`is_gone`, or this host has rebooted since. Leases use `is_gone` and silence instead, because
        another machine may have this one's name.
        """
        return self.is_gone() or (
            self.host == socket.gethostname() and _machine(self.boot) != _machine(_boot())
        )

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}" + (f" ({self.what})" if self.what else "")


def _boot() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _machine(boot: str) -> str:
    """The part of a boot id that all namespaces of a running machine share."""
    return boot.partition("/")[0]


def _started(pid: int) -> str | None:
    """Start time of a living process, None when it has ended; '' where the system has no start times."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        return ""
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


@dataclass(frozen=True)
class LeaseEntry:
    """`damage`: the error of an unreadable entry, whose act and holder are unknown."""

    number: int
    act: str
    holder: Holder | None
    record: Mapping[str, Json] | None = None
    damage: str = ""

    @property
    def whose(self) -> str:
        return str(self.holder) if self.holder else f"a process whose entry cannot be read ({self.damage})"


class LeaseLog:
    """The entries under `<address>/log/`."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.folder = join(address, LOG)

    def numbers(self) -> list[int]:
        """Numbers of all entries, in order. Lists of object stores may be late: later ones are probed."""
        found = sorted(int(entry[1]) for name in names(self.folder) if (entry := ENTRY.fullmatch(name)))
        if not has_exclusive_create(self.folder):
            following = found[-1] + 1 if found else 1
            while exists(self.place(following)):
                found.append(following)
                following += 1
        return found

    def place(self, number: int) -> str:
        return join(self.folder, f"{number:06d}.json")

    def entry(self, number: int) -> LeaseEntry:
        """Read an entry. Raises DamageError when its file holds none."""
        place = self.place(number)
        document = opened(read_bytes(place, MOST_BYTES), place, "an entry of a lease log", UNSEALED)
        try:
            holder, act, record = (
                Holder.read(document.get("holder")),
                document.get("act"),
                document.get("record"),
            )
            if act not in ACTS or not isinstance(record, dict | None) or (act == "publish") != bool(record):
                raise ValueError(f"its act is {str(act)[:20]!r}")
        except ValueError as error:
            raise DamageError(f"{place}: not an entry of a lease log ({error})") from None
        return LeaseEntry(number=number, act=act, holder=holder, record=record)

    def last(self) -> LeaseEntry | None:
        """The newest entry, readable or not; None without entries or when they are being removed."""
        numbers = self.numbers()
        try:
            return self.entry(numbers[-1]) if numbers else None
        except FileNotFoundError:
            return None
        except DamageError as damage:
            return LeaseEntry(number=numbers[-1], act="", holder=None, damage=str(damage))

    def append(self, number: int, act: str, holder: Holder, record: Mapping[str, Json] | None = None) -> bool:
        """Write entry `number`; False when another process was first. Raises DamageError beyond 999999."""
        if number > 999_999:
            raise DamageError(f"{self.folder}: has reached the highest entry number")
        document: dict[str, Json] = {"act": act, "holder": vars(holder), "time": time.time()}
        if record is not None:
            document["record"] = record
        return create_exclusive(self.place(number), sealed(document))

    def beat(self, fence: int) -> str:
        """The holder's counter file: a counter and `pid:start` of each process that writes for it."""
        try:
            return read_bytes(join(self.folder, f"beat-{fence:06d}"), MOST_BYTES).decode(errors="replace")
        except (FileNotFoundError, DamageError):
            return ""


class Lease:
    """The right to write at an address, from `take` until `release`, renewed by `renew`."""

    def __init__(self, log: LeaseLog, fence: int, holder: Holder) -> None:
        self.log, self.fence, self.holder = log, fence, holder
        self._count = 0
        self._renewed = time.monotonic()
        self._writers = ""

    def renew(self) -> None:
        self._count += 1
        sign = f"{self._count}{self._writers}"
        write_bytes(join(self.log.folder, f"beat-{self.fence:06d}"), sign.encode())
        self._renewed = time.monotonic()

    def name_writers(self, pids: Iterable[int]) -> None:
        """Let `pids` write on this holder's behalf: if it dies, the lease stays taken while they live."""
        self._writers = "".join(f" {pid}:{_started(pid) or ''}" for pid in pids)
        self.renew()

    def is_expired(self, expiry_s: float = EXPIRY_S) -> bool:
        """True when it was not renewed for so long that others may have taken it."""
        return time.monotonic() - self._renewed > expiry_s

    def is_mine(self) -> bool:
        last = self.log.last()
        return last is not None and last.number == self.fence

    def release(self) -> None:
        """Release the lease; no effect if it was lost."""
        if self.is_mine():
            self.log.append(self.fence + 1, "release", self.holder)
        remove(join(self.log.folder, f"beat-{self.fence:06d}"))

    def let_go(self) -> None:
        """`release`, ignoring an unreachable store: the end of this process frees the lease as well."""
        with suppress(OSError):
            self.release()


def take(
    address: str,
    holder: Holder,
    *,
    handover: int = 0,
    expiry_s: float = EXPIRY_S,
    on_wait: Callable[[str], None] = lambda message: None,
    stopped: threading.Event | None = None,
) -> Lease | None:
    """Take the lease of `address`, waiting while another holder lives; None when the artifact was published
    meanwhile. `handover` is the fence of a lease that its holder hands to this process.

    Raises StoppedError when `stopped` is set while waiting.
    """
    log = LeaseLog(address)
    silence = Silence(log, expiry_s, on_wait)
    while True:
        last = log.last()
        if last is not None and last.act == "publish":
            return None
        free = last is None or last.number == handover or silence.is_free(last)
        number = last.number + 1 if last else 1
        if free and log.append(number, "take", holder):
            lease = Lease(log, number, holder)
            lease.renew()
            return lease
        _pause(stopped, 0 if free else POLL_S)


def wait_until_free(
    address: str, *, on_wait: Callable[[str], None], stopped: threading.Event, expiry_s: float = EXPIRY_S
) -> None:
    """Wait until the lease of `address` is free, without taking it. Raises StoppedError like `take`."""
    log = LeaseLog(address)
    silence = Silence(log, expiry_s, on_wait)
    while (last := log.last()) is not None and last.act != "publish" and not silence.is_free(last):
        _pause(stopped, POLL_S)


class Silence:
    """How long a lease's holder has been silent, measured by the waiter's own clock."""

    def __init__(self, log: LeaseLog, expiry_s: float, on_wait: Callable[[str], None]) -> None:
        self._log, self._expiry_s, self._on_wait = log, expiry_s, on_wait
        self._sign, self._since, self._is_told = "", time.monotonic(), False

    def is_free(self, last: LeaseEntry) -> bool:
        """Whether the lease may be taken: released, or its holder gone or silent for too long."""
        if last.act == "release":
            return True
        sign = f"{last.number} {self._log.beat(last.number)}"
        if sign != self._sign:
            self._sign, self._since = sign, time.monotonic()
        if last.holder is not None and last.holder.is_gone() and not _have_writers(sign):
            return True
        if time.monotonic() - self._since > self._expiry_s:
            return True
        if not self._is_told:
            self._is_told = True
            until = "" if last.holder else f" to be silent for {self._expiry_s:.0f} s"
            self._on_wait(
                f"{self._log.address} is being written by {last.whose}; waiting for it{until} (Ctrl-C leaves"
                " it running)"
            )
        return False


def _pause(stopped: threading.Event | None, seconds: float) -> None:
    if stopped is not None and stopped.wait(seconds):
        raise StoppedError("stopped while waiting for a lease")
    if stopped is None:
        time.sleep(seconds)


def _have_writers(sign: str) -> bool:
    """Whether a process named in the counter file of a holder on this host still lives."""
    return any(_started(int(pid)) == started for pid, started in WRITER.findall(sign))


class Renewal:
    """Renews leases in the background; `lost` is set when one could not be renewed in time or was taken
    over.
    """

    def __init__(self, leases: list[Lease], every_s: float = BEAT_S) -> None:
        self.leases, self.every_s = leases, every_s
        self.lost = threading.Event()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease-renewal", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._end.wait(self.every_s):
            for lease in self.leases:
                try:
                    lease.renew()
                    gone = not lease.is_mine()
                except OSError:
                    gone = lease.is_expired()
                if gone:
                    self.lost.set()

    def stop(self) -> None:
        self._end.set()
        self._thread.join()
