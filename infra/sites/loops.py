"""What an agent does again and again, each thing in a thread of its own: a peer that hangs holds up nothing
but what is done with it.
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
    """`do` returns or raises what is wrong; where it raises RpcError, that is what was wrong before: that a
    peer does not answer is said by one work of several. `well` is said when nothing is wrong any more.
    """

    name: str
    do: Callable[[], str | None]
    well: str = "go on"


class Loops:
    """Does works until `stop` is set. What is wrong with one is said when it is another than before."""

    def __init__(self, stop: threading.Event, say: Callable[[str], None]) -> None:
        self._stop, self._say = stop, say
        self._running: dict[str, _Loop] = {}

    def run(self, works: Callable[[], Iterable[RepeatedJob]]) -> None:
        """Begin and end threads as `works` says at each look; where it raises, they stay as they are. Returns
        when `stop` is set.
        """
        _Loop(RepeatedJob("peers", lambda: self._keep(works())), self._stop, self._say).run()

    def join(self, seconds: float) -> bool:
        """Wait for all threads, so long at most; whether they have ended."""
        end = time.monotonic() + seconds
        for loop in self._running.values():
            loop.thread.join(max(0.0, end - time.monotonic()))
        return not any(loop.thread.is_alive() for loop in self._running.values())

    def _keep(self, works: Iterable[RepeatedJob]) -> None:
        """Have a thread for each of `works`, and for no other."""
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
    """A work that is done again and again while it is wanted."""

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
            except Exception as error:  # whatever a peer causes, it is tried again
                problem = f"{self._work.name}: {error}"
            if problem != said and self.is_wanted and not self._stop.is_set():
                said = problem
                with suppress(OSError, ValueError):  # nobody reads it any more
                    self._say(problem or f"{self._work.name}: {self._work.well}")
            self._stop.wait(LOOK_EVERY)
