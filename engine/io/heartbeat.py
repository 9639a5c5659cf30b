"""A rank's heartbeat: its step and phase in a memory-mapped file of a few bytes, overwritten in place (about
a microsecond) and read by the supervisor's hang detector. Torch-free.
"""

import mmap
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

PULSE = "ATELIER_PULSE"  # environment variable of a rank: the folder
_BYTES = struct.Struct("<qqd24s")
SIZE = _BYTES.size


@dataclass(frozen=True)
class RankProgress:
    """A rank's progress: current step, number of beats in it, phase."""

    step: int = 0
    beat: int = 0
    limit_s: float = 0.0  # longer without beat is a hang; 0 = no limit
    phase: str = ""

    @property
    def place(self) -> tuple[int, int]:
        return self.step, self.beat

    def pack(self) -> bytes:
        return _BYTES.pack(self.step, self.beat, self.limit_s, self.phase.encode()[:24])


def unpack(data: bytes) -> RankProgress:
    """The progress in the `SIZE` bytes of a heartbeat file."""
    step, beat, limit_s, phase = _BYTES.unpack(data)
    return RankProgress(step, beat, limit_s, phase.rstrip(b"\0").decode(errors="replace"))


def heartbeat_file(folder: str | Path, rank: int) -> Path:
    return Path(folder) / f"rank-{rank:04d}"


SHORTEST_S = 600.0  # shortest limit for `auto`
LONGEST_STEPS = 20


class Heartbeat:
    """Writes the training's progress to a file for the hang detector; without a file it only keeps track."""

    def __init__(self, file: mmap.mmap | None = None) -> None:
        self._file = file
        self._hang_s: float | Literal["auto"] = 0.0
        self._longest_s = 0.0
        self._begun = 0.0  # start of the current step with limit; 0 = none
        self._step = self._beat = 0

    @staticmethod
    def of_rank(rank: int) -> "Heartbeat":
        """The heartbeat of a rank in the folder named by the environment; without a file if it names none."""
        folder = os.environ.get(PULSE, "")
        if not folder:
            return Heartbeat()
        with open(heartbeat_file(folder, rank), "w+b") as file:
            file.truncate(SIZE)
            return Heartbeat(mmap.mmap(file.fileno(), SIZE))

    def watch(self, hang_s: float | Literal["auto"]) -> None:
        """Set the limit for a usual step without a beat; 0 = none."""
        self._hang_s, self._longest_s = hang_s, 0.0

    def begin(self, step: int, *, is_usual: bool) -> None:
        """Begin `step`. A step that is not usual (it compiles) has no time limit."""
        now = time.monotonic()
        if self._begun:
            self._longest_s = max(self._longest_s, now - self._begun)
        self._begun = now if is_usual else 0.0
        self._step, self._beat = step, 0
        self.at("begin")

    def rest(self, phase: str) -> None:
        """Begin a phase without time limit, until the next step: loading, saving, publishing."""
        if self._begun:
            self._longest_s = max(self._longest_s, time.monotonic() - self._begun)
        self._begun = 0.0
        self.at(phase)

    def at(self, phase: str) -> None:
        """Record a beat: `phase` of the step begins."""
        self._beat += 1
        if self._file is not None:
            self._file[:] = RankProgress(self._step, self._beat, self._limit_s, phase).pack()

    @property
    def _limit_s(self) -> float:
        if not self._begun:
            return 0.0
        return max(SHORTEST_S, LONGEST_STEPS * self._longest_s) if self._hang_s == "auto" else self._hang_s
