"""Who may write: an append-only log per address, one exclusive create an entry. The entry's number is the
fence.

`take` and `release` hand the right to write around; `publish` ends it: the first one published wins, for
good. A holder proves life by a counter file; whoever waits judges its silence by a clock of its own, so no
clock jump steals a lease. The counter file also names the processes that write on its behalf: a dead holder
is gone only when they are.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.spec.error import AtelierError, DamageError, StoppedError
from engine.storage import exists, has_exclusive_create, join, names, read_bytes, remove, write_bytes
from infra.exclusive import create_exclusive

LOG = "log"
EXPIRY_S = 60.0
BEAT_S = 5.0
POLL_S = 0.3


class LeaseLost(AtelierError):
    """Another holder has taken over; nothing may be published any more."""


@dataclass(frozen=True)
class Holder:
    host: str
    boot: str
    pid: int
    started: str
    what: str = ""

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
        """True when this holder was a process of this very host and is no more; False when alive or not to be
        known from here.
        """
        if self.host != socket.gethostname() or self.boot != _boot():
            return False
        return _started(self.pid) != self.started

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}" + (f" ({self.what})" if self.what else "")


def _boot() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _started(pid: int) -> str | None:
    """Start time of a living process, None when there is none; '' where the system does not tell."""
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
class Entry:
    number: int
    act: str
    holder: dict[str, Any]
    record: dict[str, Any] | None = None


class Log:
    """The entries under `<address>/log/`."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.folder = join(address, LOG)

    def numbers(self) -> list[int]:
        """All entries, in order. Lists of object stores may be late: what follows the last one is asked
        for.
        """
        found = sorted(
            int(name[:6]) for name in names(self.folder) if name.endswith(".json") and name[:6].isdigit()
        )
        if not has_exclusive_create(self.folder):
            following = found[-1] + 1 if found else 1
            while exists(self._place(following)):
                found.append(following)
                following += 1
        return found

    def _place(self, number: int) -> str:
        return join(self.folder, f"{number:06d}.json")

    def entry(self, number: int) -> Entry:
        place = self._place(number)
        try:
            document = json.loads(read_bytes(place))
            return Entry(
                number=number, act=document["act"], holder=document["holder"], record=document.get("record")
            )
        except (ValueError, KeyError, TypeError) as error:
            raise DamageError(f"{place}: not an entry of a lease log ({error})") from None

    def last(self) -> Entry | None:
        """The newest entry; None where there is none, or where all of it is removed while this looks."""
        numbers = self.numbers()
        try:
            return self.entry(numbers[-1]) if numbers else None
        except FileNotFoundError:
            return None

    def append(self, number: int, act: str, holder: Holder, record: dict[str, Any] | None = None) -> bool:
        """Write entry `number`; False when somebody else wrote it first."""
        document: dict[str, Any] = {"act": act, "holder": vars(holder), "time": time.time()}
        if record is not None:
            document["record"] = record
        return create_exclusive(self._place(number), json.dumps(document, sort_keys=True).encode())

    def beat(self, fence: int) -> str:
        """The holder's sign of life: a counter, and `pid:start` of each process that writes for it."""
        try:
            return read_bytes(join(self.folder, f"beat-{fence:06d}")).decode()
        except FileNotFoundError:
            return ""


class Lease:
    """The right to write at an address, from `take` until `release`, renewed by `renew`."""

    def __init__(self, log: Log, fence: int, holder: Holder) -> None:
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
        """Let `pids` write on this holder's behalf: should it die, nobody takes over while they live."""
        self._writers = "".join(f" {pid}:{_started(pid) or ''}" for pid in pids)
        self.renew()

    def is_expired(self, expiry_s: float = EXPIRY_S) -> bool:
        """True when it could not be renewed for so long that others may have judged it dead."""
        return time.monotonic() - self._renewed > expiry_s

    def is_mine(self) -> bool:
        last = self.log.last()
        return last is not None and last.number == self.fence

    def release(self) -> None:
        """Give it back; nothing happens when it was lost already."""
        if self.is_mine():
            self.log.append(self.fence + 1, "release", self.holder)
        remove(join(self.log.folder, f"beat-{self.fence:06d}"))

    def let_go(self) -> None:
        """`release`, when work is over: where the store is away, this process's end releases it as well."""
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
    """Take the lease of `address`, waiting while another holder lives; None when the artifact got published
    meanwhile.

    `handover` is the fence of a lease that its holder hands to this process.
    """
    log = Log(address)
    seen, since, told = "", time.monotonic(), False
    while True:
        last = log.last()
        if last is not None and last.act == "publish":
            return None
        if last is None or last.act == "release" or last.number == handover:
            free = True
        else:
            other = Holder(**last.holder)
            sign = f"{last.number} {log.beat(last.number)}"
            if sign != seen:
                seen, since = sign, time.monotonic()
            free = (other.is_gone() and not _have_writers(sign)) or time.monotonic() - since > expiry_s
            if not free and not told:
                on_wait(f"{address} is being written by {other}; waiting for it (Ctrl-C leaves it running)")
                told = True
        number = last.number + 1 if last else 1
        if free and log.append(number, "take", holder):
            lease = Lease(log, number, holder)
            lease.renew()
            return lease
        if stopped is not None and stopped.wait(POLL_S if not free else 0):
            raise StoppedError("stopped while waiting for a lease")
        if stopped is None and not free:
            time.sleep(POLL_S)


def _have_writers(sign: str) -> bool:
    """Whether a process named in the beat of a holder of this host is still there."""
    named = [word.split(":") for word in sign.split()[2:]]
    return any(_started(int(pid)) == started for pid, started in named)


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
