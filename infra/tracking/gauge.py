"""What a gang's processes use of this machine, read from /proc beside them: the ranks do nothing for it."""

import os
import time
from contextlib import suppress
from pathlib import Path

from infra.lease import Holder, Log

EVERY_S = 1.0
PROC = Path("/proc")


class Gauge:
    """The processes under whoever trains a trajectory; silent when they run on another machine."""

    def __init__(self, trajectory: str) -> None:
        """`trajectory`: address of the folder whose lease tells the gang's guard."""
        self._trajectory = trajectory
        self._guard: Holder | None = None
        self._seconds: dict[int, float] = {}
        self._at = 0.0

    def read(self) -> dict[str, float]:
        """`cpu_cores` that were busy since the last answer and `resident_gb` now; {} when there is nothing to
        tell yet, or no answer is due.
        """
        now = time.monotonic()
        if now - self._at < EVERY_S:
            return {}
        pids = _under(guard.pid) if (guard := self._find()) else []
        seconds, resident = {}, 0
        for pid in pids:
            with suppress(OSError):  # it has just ended
                fields = (PROC / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()
                seconds[pid] = 0 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
                resident += int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
        before, since, self._seconds, self._at = self._seconds, now - self._at, seconds, now
        if not before or not seconds:
            return {}
        used = sum(value - before.get(pid, 0.0) for pid, value in seconds.items())
        return {"cpu_cores": used / since, "resident_gb": resident / 1e9}

    def _find(self) -> Holder | None:
        if self._guard is None or self._guard.is_gone():
            last = Log(self._trajectory).last()
            found = Holder(**last.holder) if last is not None and last.act == "take" else None
            me = Holder.me()
            is_here = found is not None and (found.host, found.boot) == (me.host, me.boot)
            self._guard = found if is_here and found is not None and not found.is_gone() else None
        return self._guard


def _under(pid: int) -> list[int]:
    """`pid` and all processes below it."""
    found, waiting = [], [pid]
    while waiting:
        current = waiting.pop()
        found.append(current)
        for children in (PROC / str(current) / "task").glob("*/children"):
            with suppress(OSError):  # as above
                waiting += [int(word) for word in children.read_text().split()]
    return found
