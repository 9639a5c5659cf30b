"""Run orders of other sites. Each is judged by this site's policy. An accepted order becomes a process of
this site, started by a fixed command whose only argument from outside is the order's id.
"""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from atelier import IMPORT_ROOT
from atelier.engine.config.error import AtelierError
from atelier.engine.io.storage import local_path, make_folder
from atelier.infra.sites.desk import OrderDesk, Reply, SiteOrder
from atelier.infra.sites.keys import Keys
from atelier.infra.sites.note_cache import NoteSummary
from atelier.infra.sites.policy import Policies
from atelier.infra.store.file_lock import file_lock

LOCK, LOG, WORK = "lock", "log.txt", "work"
MOST_AT_ONCE = 4  # processes for a home site: of plans, and of runs
STOP_S, LOOKING_S = 60.0, 2.0
KEPT_S, TIDY_S = 7 * 86400.0, 3600.0  # until an ended order is removed, and between two looks for them
MOST_STARTS = 4  # of an order whose processes are killed from outside


class OrderRunner:
    """Runs the orders for the site of `keys` in the mailbox folder `mailbox`, with the store at `root`."""

    def __init__(self, keys: Keys, mailbox: str, root: str, say: Callable[[str], None]) -> None:
        self._keys, self._mailbox, self._root, self._say = keys, mailbox, root, say
        self._site, self._desk = keys.card.site, OrderDesk(mailbox)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._ended: set[str] = set()
        self._told_to_stop: set[str] = set()
        self._starts: dict[str, int] = {}
        self._acts: dict[str, tuple[str, str]] = {}  # home and act of orders that were started
        self._problems: dict[str, str] = {}  # that were reported, by subject
        self._tidied = time.monotonic()

    def look(self) -> None:
        """Start new orders, end cancelled ones, and answer for processes that have ended."""
        for number, process in list(self._running.items()):
            if process.poll() is not None:
                with self._trying(f"order {number[:8]}"):
                    self._close(number, process.returncode)
                    del self._running[number]
        with self._trying("orders"):
            for about in self._desk.listed():
                if about.order not in self._ended:
                    with self._trying(f"order {about.order[:8]} of {about.home}"):
                        self._look_at(about)
        if time.monotonic() - self._tidied > TIDY_S:
            self.tidy()

    @contextmanager
    def _trying(self, what: str) -> Iterator[None]:
        """Report an error of the block only when it changes; the rest continues."""
        try:
            yield
            self._problems.pop(what, None)
        except Exception as error:  # whatever an order causes, it is retried
            if self._problems.get(what) != str(error):
                self._problems[what] = str(error)
                self._say(f"{what}: {error}")

    def tidy(self) -> None:
        """Remove orders that ended long ago."""
        self._tidied = time.monotonic()
        with self._trying("old orders"):
            for about in self._desk.listed():
                if self._desk.age(about.order) > KEPT_S and self._desk.is_over(about.order):
                    self._desk.forget(about.order)
                    self._ended.discard(about.order)  # it may be ordered again

    def _look_at(self, about: NoteSummary) -> None:
        if about.site != self._site or self._desk.is_over(about.order):
            self._ended.add(about.order)
            return
        order = self._desk.order(about.order)
        if order is None:  # removed meanwhile
            return
        holder = holder_of(self._desk, order.id)
        is_cancelled = self._is_cancelled(order)
        if holder or order.id in self._running:  # of an agent before this one, too
            if holder and is_cancelled and order.id not in self._told_to_stop:
                with suppress(ProcessLookupError):
                    os.kill(holder, signal.SIGTERM)
                self._told_to_stop.add(order.id)
                self._say(f"order {order.id[:8]} of {order.home}: cancelled")
        elif is_cancelled:
            self.end(order, "stopped", "cancelled")
        elif self._keys.peer(order.home) and (refused := self._refusal(order)):
            self._say(f"order {order.id[:8]} of {order.home}: refused: {refused}")
            self.end(order, "refused", refused)
        elif self._has_room(order):
            self._start(order)
        elif self._desk.reply(order.id) is None:
            self._answer(order, "running", "waits for other orders here")

    def _is_cancelled(self, order: SiteOrder) -> bool:
        """Whether it must end: its home has cancelled it, or is no longer trusted."""
        return self._desk.is_cancelled(order.id) or not self._keys.trusts(order.home)

    def _has_room(self, order: SiteOrder) -> bool:
        """Whether another process may be started; plans do not wait for runs."""
        of_its_kind = [one for one in self._running if self._acts.get(one) == (order.home, order.act)]
        return len(of_its_kind) < MOST_AT_ONCE

    def _refusal(self, order: SiteOrder) -> str:
        try:
            return Policies(self._keys.folder).of(order.home).refusal(order)
        except AtelierError as error:
            return str(error)

    def _start(self, order: SiteOrder) -> None:
        folder = local_path(self._desk.folder(order.id))
        self._starts[order.id] = self._starts.get(order.id, 0) + 1
        self._acts[order.id] = (order.home, order.act)
        make_folder(folder / WORK)
        command = [sys.executable, "-m", "atelier", "site", "work", order.id]
        command += ["--keys", str(self._keys.folder), "--mailbox", self._mailbox]
        env = os.environ | {"PYTHONPATH": str(IMPORT_ROOT), "ATELIER_ROOT": self._root}
        if self._desk.reply(order.id) is None:  # before the process answers
            self._answer(order, "running")
        with (folder / LOG).open("ab") as log:
            self._running[order.id] = subprocess.Popen(
                command, cwd=folder / WORK, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        if order.act == "run":
            self._say(f"order {order.id[:8]} of {order.home}: {order.flow}, {', '.join(order.tasks)}")

    def _close(self, number: str, code: int) -> None:
        """Answer for a process that ended without a last reply."""
        order, reply = self._desk.order(number), self._desk.reply(number)
        if order is None or (reply is not None and reply.is_last) or holder_of(self._desk, number):
            return
        last = ""
        with suppress(OSError, ValueError):
            path = local_path(self._desk.folder(number)) / LOG
            last = "".join(path.read_text(errors="replace").strip().splitlines()[-1:])
        is_cancelled = self._is_cancelled(order)
        if code < 0 and not is_cancelled and self._starts[number] < MOST_STARTS:
            self._say(f"order {number[:8]}: its process was killed; it continues in another")
            return
        self.end(order, "stopped" if is_cancelled else "failed", last or f"ended with {code}")

    def end(self, order: SiteOrder, state: str, problem: str) -> None:
        """Write the last reply to an order."""
        self._answer(order, state, problem)
        self._ended.add(order.id)

    def _answer(self, order: SiteOrder, state: str, problem: str = "") -> None:
        before = self._desk.reply(order.id)
        about = {"order": order.id, "home": order.home, "site": order.site, "state": state}
        kept = before.model_dump(include={"tasks", "records"}) if before else {}
        number = before.number + 1 if before else 1
        self._desk.put(Reply.model_validate({**kept, **about, "problem": problem, "number": number}))

    def end_all(self) -> None:
        """End the processes of orders, at a checkpoint. Otherwise they continue when the agent ends, and the
        next agent finds them.
        """
        for process in self._running.values():
            process.terminate()
        until = time.monotonic() + STOP_S
        for about in self._desk.listed():
            while about.site == self._site and (holder := holder_of(self._desk, about.order)):
                if time.monotonic() > until:
                    self._say(f"order {about.order[:8]}: has not stopped within {STOP_S:.0f} s")
                    break
                if about.order not in self._running:  # an agent before this one started it
                    with suppress(ProcessLookupError):
                        os.kill(holder, signal.SIGTERM)
                time.sleep(0.1)
        for process in self._running.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))


@contextmanager
def holding(desk: OrderDesk, number: str) -> Iterator[None]:
    """Lock an order for this process while the block runs. Raises AtelierError if another process has it."""
    path = local_path(desk.folder(number)) / LOCK
    until = time.monotonic() + LOOKING_S  # an agent that looks holds it for a moment
    while (held := file_lock(path)) is None:
        if time.monotonic() > until:
            raise AtelierError(f"order {number[:8]}: another process works on it")
        time.sleep(0.05)
    with held as file:
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def holder_of(desk: OrderDesk, number: str) -> int:
    """The process that works on an order; 0 = none."""
    path = local_path(desk.folder(number)) / LOCK
    if not path.exists():
        return 0
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            text = file.read()
            return int(text) if text.isdecimal() else 0
    return 0
