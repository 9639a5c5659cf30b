"""Repeated jobs of an agent, each in a thread of its own, so that a peer that hangs delays only
its own jobs.
"""

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

import grpc

LOOK_EVERY = 0.2  # seconds


@dataclass(frozen=True)
class RepeatedJob:
    """`do` returns or raises its problem. A RpcError does not change the problem: one job of each peer
    reports that the peer does not answer. `well` is printed when a problem is over.
    """

    name: str
    do: Callable[[], str | None]
    well: str = "work again"


class Loops:
    """Runs jobs until `stop` is set. Reports the problem of a job only when it changes."""

    def __init__(self, stop: threading.Event, say: Callable[[str], None]) -> None:
        self._stop, self._say = stop, say
        self._running: dict[str, _Loop] = {}

    def run(self, works: Callable[[], Iterable[RepeatedJob]]) -> None:
        """Start and end threads to match `works`, which is called at each look; if it raises, they stay.
        Returns when `stop` is set.
        """
        _Loop(RepeatedJob("peers", lambda: self._keep(works())), self._stop, self._say).run()

    def join(self, seconds: float) -> bool:
        """Wait for all threads, at most `seconds`; returns whether they have ended."""
        end = time.monotonic() + seconds
        for loop in self._running.values():
            loop.thread.join(max(0.0, end - time.monotonic()))
        return not any(loop.thread.is_alive() for loop in self._running.values())

    def _keep(self, works: Iterable[RepeatedJob]) -> None:
        """Start a thread for each new job; tell the others to end."""
        listed = [*works]
        wanted = {work.name: work for work in listed}
        assert len(wanted) == len(listed), "two works of one name"
        for name, loop in [*self._running.items()]:
            if name not in wanted:
                loop.is_wanted = False
            if not loop.thread.is_alive():
                del self._running[name]
        for name, work in wanted.items():
            if name not in self._running:
                self._running[name] = loop = _Loop(work, self._stop, self._say)
                loop.thread.start()


class _Loop:
    """One repeated job."""

    def __init__(self, work: RepeatedJob, stop: threading.Event, say: Callable[[str], None]) -> None:
        self._work, self._stop, self._say = work, stop, say
        self.is_wanted = True
        self.thread = threading.Thread(target=self.run, name=work.name, daemon=True)

    def run(self) -> None:
        said = ""
        while not self._stop.is_set() and self.is_wanted:
            try:
                problem = self._work.do() or ""
            except grpc.RpcError:
                problem = said
            except Exception as error:  # whatever a peer causes, it is retried
                problem = f"{self._work.name}: {error}"
            if problem != said and self.is_wanted and not self._stop.is_set():
                said = problem
                with suppress(OSError, ValueError):  # the reader is gone
                    self._say(problem or f"{self._work.name}: {self._work.well}")
            self._stop.wait(LOOK_EVERY)
