"""Decisions from all-reduced losses and norms, kept in the role's checkpoint: when distillation switches on,
and whether a step went wrong.
"""

import math
from collections.abc import Mapping
from typing import Literal

from atelier.engine.checkpoint.state import Nested
from atelier.engine.config.base import Json
from atelier.engine.config.error import AtelierError
from atelier.engine.config.train import Bad, Health

GATE_BETA = 0.98


class DistillationGate:
    """Opens for good when the bias-corrected EMA of (student loss - teacher loss) reaches `threshold` nats;
    threshold "open": open from `start` on.

    Sums are float64 and come from all-reduced losses, so every rank decides alike and a resumed run decides
    as an uninterrupted one.
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
        return self.sum / (1.0 - GATE_BETA**self.num_seen) if self.num_seen else 0.0

    def observe(self, gap: float, step: int) -> None:
        """Add the gap of the clock's `step`; if that opens the gate, distillation begins with step + 1."""
        self.sum = GATE_BETA * self.sum + (1.0 - GATE_BETA) * gap
        self.num_seen += 1
        if not isinstance(self.threshold, str) and not self.is_open and self.gap >= self.threshold:
            self.opened = step + 1

    def state(self) -> dict[str, float | int]:
        return {"sum": self.sum, "num_seen": self.num_seen, "opened": self.opened}

    def restore(self, state: dict[str, float | int]) -> None:
        self.sum, self.num_seen = float(state["sum"]), int(state["num_seen"])
        self.opened = int(state["opened"])


BETA = 0.98


class HealthDetector:
    """Detects bad steps by running averages of the good ones, and counts those skipped or rolled back."""

    def __init__(self, spec: Health) -> None:
        self.spec = spec
        self.sums = {"loss": 0.0, "square": 0.0, "norm": 0.0}  # EMAs, not yet bias-corrected
        self.num_seen = 0
        self.num_skipped = 0  # over the whole training
        self.rolled_back: list[int] = []  # the bad steps that a rollback of its root passes over, ascending
        self.words = ""  # what was wrong with the last bad step

    def judge(self, loss: float, norm: float, others: Mapping[str, float] | None = None) -> Bad:
        """Classify a step by its loss, gradient norm and the means of its objectives, by name: "nan",
        "spike", or "" for a good step. Bad steps do not change the averages.
        """
        wrong = [name for name, value in (others or {}).items() if not math.isfinite(value)]
        if wrong or not (math.isfinite(loss) and math.isfinite(norm)):
            which = f" ({', '.join(wrong)})" if wrong else ""
            self.words = f"loss {loss:.4g} or gradient norm {norm:.4g} is not finite{which}"
            return "nan"
        if self.spec.spike == "off":
            return ""
        if self._spikes(loss, norm):
            return "spike"
        for name, value in (("loss", loss), ("square", loss * loss), ("norm", norm)):
            self.sums[name] = BETA * self.sums[name] + (1.0 - BETA) * value
        self.num_seen += 1
        return ""

    def _spikes(self, loss: float, norm: float) -> bool:
        if self.num_seen < self.spec.spike_after:
            return False
        mean, square, usual = (self._average(name) for name in ("loss", "square", "norm"))
        deviation = math.sqrt(max(0.0, square - mean * mean))
        limit = mean + max(self.spec.spike_sigmas * deviation, self.spec.spike_nats)
        if loss > limit:
            self.words = f"loss {loss:.4g} spikes over {limit:.4g} nats (average {mean:.4g})"
            return True
        if self.spec.spike_norm and norm > self.spec.spike_norm * usual:
            times = self.spec.spike_norm
            self.words = f"gradient norm {norm:.4g} spikes over {times:g} times its average {usual:.4g}"
            return True
        return False

    def _average(self, name: str) -> float:
        return self.sums[name] / (1.0 - BETA**self.num_seen)  # Adam's correction, 1412.6980

    def passes_over(self, step: int) -> bool:
        return any(bad - self.spec.pass_over < step <= bad for bad in self.rolled_back)

    def check_patience(self, place: str, step: int, in_a_row: int) -> None:
        """Raise AtelierError when as many steps in a row were skipped as `patience` allows."""
        if in_a_row < self.spec.patience:
            return
        what = "not finite or a spike" if self.spec.spike != "off" else "not finite"
        raise AtelierError(
            f"{place}: loss or gradient was {what} in {in_a_row} steps in a row, up to step {step}; "
            f"lower {place}.optim.lr or raise its warmup; the last checkpoint before is kept"
        )

    def summary(self) -> dict[str, Json]:
        """The skipped and rolled-back steps for the model's summary; empty when there were none."""
        found: dict[str, Json] = {"skipped": self.num_skipped} if self.num_skipped else {}
        if self.rolled_back:
            found["rolled_back"] = list(self.rolled_back)
            found["pass_over"] = self.spec.pass_over
        return found

    def state(self) -> dict[str, float | list[int]]:
        counts = {"num_seen": self.num_seen, "num_skipped": self.num_skipped}
        return {**self.sums, **counts, "rolled_back": list(self.rolled_back)}

    def restore(self, state: Nested) -> None:
        """Restore `state()`; fields missing from an older checkpoint keep their initial values."""
        self.sums = {name: float(state.get(name, 0.0)) for name in self.sums}
        self.num_seen, self.num_skipped = state.get("num_seen", 0), state.get("num_skipped", 0)
        self.rolled_back = list(state.get("rolled_back", []))
