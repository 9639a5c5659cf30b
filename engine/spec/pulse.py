"""How far a rank is: a few bytes that it overwrites in place and its guard reads. Torch-free.

Ranks of a gang go through the same beats, so the one with the fewest of the lowest step holds the others up.
"""

import struct
from dataclasses import dataclass
from pathlib import Path

PULSE = "ATELIER_PULSE"  # the folder, in the environment of a rank
_BYTES = struct.Struct("<qqd24s")
SIZE = _BYTES.size


@dataclass(frozen=True)
class Stand:
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


def unpack(data: bytes) -> Stand:
    step, beat, limit_s, phase = _BYTES.unpack(data)
    return Stand(step, beat, limit_s, phase.rstrip(b"\0").decode(errors="replace"))


def pulse_file(folder: str | Path, rank: int) -> Path:
    return Path(folder) / f"rank-{rank:04d}"
