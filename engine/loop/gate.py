"""When distillation switches on: a decision from losses that all ranks share, kept in the student's
checkpoint.
"""

from typing import Literal

BETA = 0.98


class Gate:
    """Opens for good when the bias-corrected EMA of (student loss - teacher loss) reaches `threshold` nats;
    "open" from `start` on.

    Sums are float64 and come from all-reduced losses, so every rank decides alike and a resumed run as an
    uninterrupted one.
    """

    def __init__(self, threshold: float | Literal["open"], start: int) -> None:
        self.threshold = threshold
        self.opened = start if threshold == "open" else -1  # the first step with distillation; -1 = not yet
        self.sum = 0.0
        self.num_seen = 0

    @property
    def is_open(self) -> bool:
        return self.opened >= 0

    @property
    def gap(self) -> float:
        """The bias-corrected EMA in nats (Adam's correction, 1412.6980); 0 before the first step."""
        return self.sum / (1.0 - BETA**self.num_seen) if self.num_seen else 0.0

    def observe(self, gap: float, step: int) -> None:
        """Take the gap of the clock's `step`; when it opens the gate, distillation begins with step + 1."""
        self.sum = BETA * self.sum + (1.0 - BETA) * gap
        self.num_seen += 1
        if not isinstance(self.threshold, str) and not self.is_open and self.gap >= self.threshold:
            self.opened = step + 1

    def state(self) -> dict[str, float | int]:
        return {"sum": self.sum, "num_seen": self.num_seen, "opened": self.opened}

    def restore(self, state: dict[str, float | int]) -> None:
        self.sum, self.num_seen = float(state["sum"]), int(state["num_seen"])
        self.opened = int(state["opened"])
