"""A rank's heartbeat: its step and phase in a few bytes of a mapped file, overwritten in place (about a
microsecond) and read by the supervisor. Torch-free."""

import mmap
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

PULSE = "ATELIER_PULSE"  # the folder, in the environment of a rank
_BYTES = struct.Struct("<qqd24s")
SIZE = _BYTES.size


@dataclass(frozen=True)
class RankProgress:
    """Where a rank stands: the step it works on, the beats of it so far, what it does."""

    step: int = 0
    beat: int = 0
    limit_s: float = 0.0  # standing still for longer is a hang; 0 = may take as long as it takes
    phase: str = ""

    @property
    def place(self) -> tuple[int, int]:
        return self.step, self.beat

    def pack(self) -> bytes:
        return _BYTES.pack(self.step, self.beat, self.limit_s, self.phase.encode()[:24])


def unpack(data: bytes) -> RankProgress:
    step, beat, limit_s, phase = _BYTES.unpack(data)
    return RankProgress(step, beat, limit_s, phase.rstrip(b"\0").decode(errors="replace"))


def heartbeat_file(folder: str | Path, rank: int) -> Path:
    return Path(folder) / f"rank-{rank:04d}"


SHORTEST_S = 600.0  # of `auto`
LONGEST_STEPS = 20


class Heartbeat:
    """Told where training is; tells whoever watches the file. Without a file it only listens."""

    def __init__(self, file: mmap.mmap | None = None) -> None:
        self._file = file
        self._hang_s: float | Literal["auto"] = 0.0
        self._longest_s = 0.0
        self._begun = 0.0  # when the usual step under way began; 0 = none is
        self._step = self._beat = 0

    @staticmethod
    def of_rank(rank: int) -> "Heartbeat":
        """The pulse whose folder the environment names; silent when it names none."""
        folder = os.environ.get(PULSE, "")
        if not folder:
            return Heartbeat()
        with open(heartbeat_file(folder, rank), "w+b") as file:
            file.truncate(SIZE)
            return Heartbeat(mmap.mmap(file.fileno(), SIZE))

    def watch(self, hang_s: float | Literal["auto"]) -> None:
        """From now on a usual step that stands still for so long is a hang; 0 = none is."""
        self._hang_s, self._longest_s = hang_s, 0.0

    def begin(self, step: int, *, is_usual: bool) -> None:
        """`step` begins. One that is not usual (it compiles) may take as long as it takes."""
        now = time.monotonic()
        if self._begun:
            self._longest_s = max(self._longest_s, now - self._begun)
        self._begun = now if is_usual else 0.0
        self._step, self._beat = step, 0
        self.at("begin")

    def rest(self, phase: str) -> None:
        """What comes until the next step begins may take as long as it takes: loading, saving, publishing."""
        if self._begun:
            self._longest_s = max(self._longest_s, time.monotonic() - self._begun)
        self._begun = 0.0
        self.at(phase)

    def at(self, phase: str) -> None:
        """A beat: `phase` begins."""
        self._beat += 1
        if self._file is not None:
            self._file[:] = RankProgress(self._step, self._beat, self._limit_s, phase).pack()

    @property
    def _limit_s(self) -> float:
        if not self._begun:
            return 0.0
        return max(SHORTEST_S, LONGEST_STEPS * self._longest_s) if self._hang_s == "auto" else self._hang_s
