"""Detect which rank of a gang hangs, from the heartbeat files that ranks write to a folder."""

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from atelier.engine.io.heartbeat import SIZE, RankProgress, heartbeat_file, unpack

LOOK_EVERY_S = 0.25
STATES = {"T": "stopped", "t": "stopped", "D": "waits for I/O", "R": "computes", "Z": "dead"}


class HangDetector:
    """Watches the ranks of a gang (rank -> process id). `hang` reports the rank that is behind once no rank
    has moved for longer than that rank's limit.
    """

    def __init__(
        self, folder: Path, pids: Mapping[int, int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._pids, self._clock = folder, pids, clock
        self._stands: dict[int, RankProgress] = {}
        self._still_s = 0.0
        self._looked = clock()

    def hang(self) -> str:
        """Which ranks are stuck, and where; '' when none is."""
        now = self._clock()
        passed = now - self._looked
        if passed < LOOK_EVERY_S:
            return ""
        self._looked = now
        stands = {rank: stand for rank in self._pids if (stand := self._read(rank)) is not None}
        if stands != self._stands or len(stands) < len(self._pids):
            self._stands, self._still_s = stands, 0.0
            return ""
        # a supervisor that was itself delayed must not count its delay as the ranks' silence
        self._still_s += min(passed, 4 * LOOK_EVERY_S)
        behind = min(stands.values(), key=lambda stand: stand.place)
        if not behind.limit_s or self._still_s <= behind.limit_s:
            return ""
        return f"{self._told(stands)}; no progress for {self._still_s:.0f} s"

    def _read(self, rank: int) -> RankProgress | None:
        with suppress(OSError):
            data = heartbeat_file(self._folder, rank).read_bytes()
            return unpack(data) if len(data) == SIZE else None
        return None

    def _told(self, stands: Mapping[int, RankProgress]) -> str:
        lowest = min(stand.place for stand in stands.values())
        late = [rank for rank, stand in stands.items() if stand.place == lowest]
        states = {rank: _state(pid) for rank, pid in self._pids.items()}
        if len(late) == len(stands):  # equally far: those that do not just sleep in a collective
            late = [rank for rank in late if states[rank]] or late
        words = [f"rank {rank} is at {_where(stands[rank], states[rank])}" for rank in late]
        others = [rank for rank in stands if rank not in late]
        if others:
            first = _where(stands[others[0]], "")
            whose = "the others wait" if len(others) > 1 else f"rank {others[0]} waits"
            words.append(f"{whose} at {first}")
        return ", ".join(words)


def _where(stand: RankProgress, state: str) -> str:
    return f"step {stand.step} ({stand.phase}{', ' if state else ''}{state})"


def _state(pid: int) -> str:
    """State of a process as text; '' when it sleeps or is gone."""
    with suppress(OSError, IndexError):
        return STATES.get(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0], "")
    return ""


def last_error(output: Path) -> str:
    """The last error among the JSON lines of a rank's output; '' when there is none."""
    with suppress(OSError):
        for line in reversed(output.read_text(errors="replace").splitlines()):
            with suppress(ValueError):
                message = json.loads(line)
                if isinstance(message, dict) and "error" in message:
                    return str(message["error"])
    return ""
