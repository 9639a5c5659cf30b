"""Slots of this machine. A gang waits until enough slots are free, first come, first served. Cores are shared
by the runs of a store, GPUs by all commands of all users. Also describes the processes that hold slots.
"""

import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from atelier.engine.config.error import ConfigError, StoppedError, printable
from atelier.engine.config.pool import Pool
from atelier.engine.io.machine import cores, num_cores
from atelier.engine.io.storage import UMASK
from atelier.infra.launch.gpus import ON_CPUS, VISIBLE, check_gpus, lock_name, offered
from atelier.infra.launch.locks import FOR_ALL, holder, shared_folder, try_lock, user
from atelier.infra.launch.rendezvous import NodePlace
from atelier.infra.store.local_folders import local_folder
from atelier.infra.store.run_manifest import is_alive, manifests
from atelier.infra.store.store import Store

POLL_S = 0.1
PATIENCE_S = 0.5  # shorter waits are not reported

OnWait = Callable[[str, list[int]], None]


def num_slots(pool: Pool) -> int:
    """Ranks that may run at once on one machine of the pool."""
    if pool.slots != "auto":
        return int(pool.slots)
    return pool.gpus_per_node or pool.gpus or num_cores()


@dataclass(frozen=True)
class Claim:
    """Held slots. `descriptors` hold the locks, also in a process that inherits them."""

    names: tuple[str, ...]
    descriptors: tuple[int, ...]


class _Ticket:
    """The place of a claim in the queue of this process."""


class Slots:
    """Slots as lock files in a folder: one exclusive lock each, taken in the order of arrival."""

    def __init__(
        self,
        total: int,
        folder: Path,
        names: Sequence[str] = (),
        *,
        doors: Sequence[str] = ("door",),
        mode: int = 0o666 & ~UMASK,
        what: str = "slots",
    ) -> None:
        """Slots `names`, lock files in `folder`, of which at most `total` are used at a time; `doors` are
        queue locks, shared by all whose slots overlap.
        """
        self.total, self._folder, self._mode, self._what = total, folder, mode, what
        self._names = tuple(names) or tuple(f"slot-{number}" for number in range(total))
        self._doors = sorted(doors)
        self._queue: deque[_Ticket] = deque()
        self._mutex = threading.Lock()
        self._in_use = 0
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def num_there(self) -> int:
        """Number of slots that exist; `total` may be used at a time."""
        return len(self._names)

    @contextmanager
    def claim(self, count: int, stop: threading.Event, on_wait: OnWait | None = None) -> Iterator[Claim]:
        """Hold `count` slots (at most all) during the block. `on_wait` is called once, with the awaited slots
        and the processes that hold them. Raises StoppedError if `stop` is set while waiting.
        """
        count = min(count, self.num_there)
        wait = _Wait(stop, lambda: self._tell(count, on_wait))
        held: dict[str, int] = {}
        ticket = _Ticket()
        with self._mutex:
            self._queue.append(ticket)
        try:
            doors: list[int] = []
            try:
                self._hold_queue_locks(ticket, count, doors, wait)
                self._collect(count, held, wait)
                with self._mutex:
                    self._in_use += count
            finally:
                _close(doors)
                self._leave(ticket)
            try:
                yield Claim(tuple(held), tuple(held.values()))
            finally:
                with self._mutex:
                    self._in_use -= count
        finally:
            self._leave(ticket)
            _close(held.values())

    def _hold_queue_locks(self, ticket: "_Ticket", count: int, doors: list[int], wait: "_Wait") -> None:
        """Take the door locks, in order, to avoid deadlock. Only their holder collects slots: no two gangs
        each hold half of what both need, and none overtakes a gang that needs many.
        """
        while self._queue[0] is not ticket or self._is_enough(count):
            wait.a_while()
        for door in self._doors:
            while (found := self._lock(door)) is None:
                wait.a_while()
            doors.append(found)

    def _is_enough(self, count: int) -> bool:
        """Whether `count` more slots would exceed `total`."""
        is_limited = self.total < self.num_there
        return is_limited and 0 < self._in_use > self.total - count

    def _collect(self, count: int, held: dict[str, int], wait: "_Wait") -> None:
        while True:
            for name in self._names:
                if len(held) == count:
                    return
                if name not in held and (found := self._lock(name)) is not None:
                    held[name] = found
            if len(held) == count:
                return
            wait.a_while()

    def _lock(self, name: str) -> int | None:
        return try_lock(self._place(name), self._mode)

    def _place(self, name: str) -> Path:
        return self._folder / name

    def _tell(self, count: int, on_wait: OnWait | None) -> None:
        if on_wait is not None:
            pids = {holder(self._place(name)) for name in (*self._names, *self._doors)}
            others = sorted(pid for pid in pids if pid is not None and pid != os.getpid())
            if others or pids == {None}:
                on_wait(f"{count} of {self.num_there} {self._what}", others)

    def _leave(self, ticket: "_Ticket") -> None:
        with self._mutex, suppress(ValueError):
            self._queue.remove(ticket)


class CoreSlots(Slots):
    """The cores that this process may use, plus further slots when the pool allows more. A pool beside
    trainings has slots of its own.
    """

    def __init__(self, pool: Pool, folder: Path) -> None:
        total = num_slots(pool) if pool.is_cpu else num_cores()
        own = cores()[:total]
        names = [f"core-{core}" for core in own] + [f"more-{n}" for n in range(total - len(own))]
        names = [f"beside-{n}" for n in range(total)] if pool.beside else names
        super().__init__(total, folder, names, doors=("beside",) if pool.beside else ("door",), what="cores")


def core_slots(pool: Pool, store: Store, place: NodePlace | None = None) -> CoreSlots:
    """The cores of this machine, shared by all commands and pool workers of this store. Several nodes of one
    gang on one machine get separate slots, since each waits for the other.
    """
    folder = local_folder(store) / "slots" / socket.gethostname()
    return CoreSlots(pool, folder / place.pools[place.index] if place is not None else folder)


class GpuSlots(Slots):
    """The GPUs that this process may use: one lock a GPU, for all commands and users of the machine."""

    def __init__(self, pool: Pool) -> None:
        """Raises ConfigError if this machine lacks the pool's GPUs."""
        check_gpus(pool)
        self._visible = offered(pool, num_slots(pool))
        names = [lock_name(name) for name in self._visible]
        doors = [name.replace(".lock", ".door") for name in names]
        super().__init__(num_slots(pool), shared_folder(), names, doors=doors, mode=FOR_ALL, what="GPUs")
        self._by_name = dict(zip(names, self._visible, strict=True))

    def check(self, count: int, place: str) -> None:
        """Raises ConfigError when there are fewer than `count`."""
        if count > len(self._visible):
            limit = os.environ.get(VISIBLE)
            by = "" if limit is None else f" ({VISIBLE}={limit})"
            raise ConfigError(
                place,
                f"needs {count} GPUs of this machine, but may use {len(self._visible)}{by}",
                f"pool.gpus={len(self._visible)} would fit" if self._visible else ON_CPUS,
            )

    def devices(self, claim: Claim) -> str:
        """Value of CUDA_VISIBLE_DEVICES for the claimed GPUs."""
        return ",".join(self._by_name[name] for name in claim.names)


class _Wait:
    """One wait, reported once."""

    def __init__(self, stop: threading.Event, tell: Callable[[], None]) -> None:
        self._stop, self._tell = stop, tell
        self._left = round(PATIENCE_S / POLL_S)

    def a_while(self) -> None:
        if self._stop.wait(POLL_S):
            raise StoppedError("stopped while waiting for a slot")
        self._left -= 1
        if self._left == 0:
            self._tell()


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


LONGEST = 80  # characters of a command line


def who(pids: Sequence[int], store: Store) -> str:
    """Names of the processes that hold the slots, with their runs if the store knows them."""
    if not pids:
        return "their processes are not visible from here"
    runs = {m.holder["pid"]: m.id for m in manifests(store) if m.holder and is_alive(m)}
    return f"{', '.join(_one(pid, runs.get(pid, '')) for pid in pids)} " + (
        "has them" if len(pids) == 1 else "have them"
    )


def _one(pid: int, run: str) -> str:
    name = f"run {run} (process {pid})" if run else f"process {pid}"
    with suppress(OSError):
        uid = os.stat(f"/proc/{pid}").st_uid
        if uid != os.getuid():
            name += f" of {user(uid)}"
        if not run:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            name += f" ({printable(' '.join(words).strip(), LONGEST)})"
    return name
