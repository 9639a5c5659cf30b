"""Decisions from all-reduced losses and norms, stored in the role's checkpoint: when distillation starts, and
whether a step was bad.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from atelier.engine.checkpoint.state import Nested, Tree
from atelier.engine.config.base import Json
from atelier.engine.config.error import AtelierError
from atelier.engine.config.run_file import Training
from atelier.engine.config.schedule import Schedule
from atelier.engine.config.train import Bad, Health

BETA = 0.98  # decay of running averages over steps


@dataclass
class Average:
    """An exponential running average, bias-corrected as in Adam (1412.6980)."""

    sum: float = 0.0
    num_seen: int = 0

    @property
    def value(self) -> float:
        """The average; 0 before the first number."""
        return self.sum / (1.0 - BETA**self.num_seen) if self.num_seen else 0.0

    def add(self, number: float) -> None:
        self.sum = BETA * self.sum + (1.0 - BETA) * number
        self.num_seen += 1

    def state(self) -> dict[str, float | int]:
        return {"sum": self.sum, "num_seen": self.num_seen}

    def restore(self, state: Nested) -> None:
        self.sum, self.num_seen = float(state["sum"]), int(state["num_seen"])


def settled(training: Training, name: str) -> int:
    """The clock's first step after the warm-up of a role and of its teacher."""
    mine = training.members[name]
    teacher = training.members.get(mine.role.teacher)  # None if the role has finished
    both = [mine, *([teacher] if teacher is not None else [])]
    risen = [
        _risen(training, int(each.role.start), each.role.optim.schedule)
        for each in both
        if each.mode != "frozen" and each.role.moves
    ]
    return max(training.train.progressive.steps, *risen, 0)


def _risen(training: Training, start: int, schedule: Schedule) -> int:
    """The first step after the warm-up of a role that starts at `start`."""
    if not schedule.warmup_tokens:
        return start + schedule.warmup
    return training.train.steps_until(training.train.tokens_before(start) + schedule.warmup_tokens)


class TeacherLead:
    """The teacher's lead: (student loss - teacher loss) on the same batches, averaged from step `settled` on,
    because losses mean little during warm-up. Also the gate, which opens for good when the lead reaches
    `threshold` nats ("open": at `start`).

    Numbers are float64 and come from all-reduced losses, so all ranks decide alike, and a resumed run decides
    like an uninterrupted one.
    """

    def __init__(self, threshold: float | Literal["open"], start: int, settled: int = 0) -> None:
        self.threshold, self.settled = threshold, settled
        self.opened = start if threshold == "open" else -1  # first step with distillation; -1 = closed
        self.average = Average()

    @property
    def is_open(self) -> bool:
        return self.opened >= 0

    @property
    def nats(self) -> float:
        """The lead; 0 before the first settled step."""
        return self.average.value

    def observe(self, lead: float, step: int) -> None:
        """Add the lead of the clock's `step`; if it opens the gate, distillation starts at step + 1."""
        if step < self.settled:
            return
        self.average.add(lead)
        if not isinstance(self.threshold, str) and not self.is_open and self.nats >= self.threshold:
            self.opened = step + 1

    def state(self) -> dict[str, Tree]:
        return {"average": {**self.average.state()}, "opened": self.opened}

    def restore(self, state: Nested) -> None:
        self.average.restore(state["average"])
        self.opened = int(state["opened"])


class HealthDetector:
    """Detects bad steps by running averages of good ones; counts skipped and rolled-back steps."""

    def __init__(self, spec: Health) -> None:
        self.spec = spec
        self.sums = {"loss": 0.0, "square": 0.0, "norm": 0.0}  # EMAs before bias correction
        self.num_seen = 0
        self.num_skipped = 0  # over the whole training
        self.rolled_back: list[int] = []  # bad steps of its root's rollbacks, ascending
        self.words = ""  # description of the last bad step

    def judge(self, loss: float, norm: float, others: Mapping[str, float] | None = None) -> Bad:
        """Classify a step by its loss, gradient norm and objectives' means (by name): "nan", "spike", or ""
        for a good step. Bad steps do not change the averages.
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
        """Raise AtelierError if `in_a_row` skipped steps reach `patience`."""
        if in_a_row < self.spec.patience:
            return
        what = "not finite or a spike" if self.spec.spike != "off" else "not finite"
        way_out = "lower its optim.lr or raise its optim.schedule.warmup; checkpoints before are kept"
        if step == in_a_row:  # no step was good, so no weight has changed
            way_out = "no step was good: look at its data, its init and train.precision"
        raise AtelierError(
            f"{place}: loss or gradient was {what} in {in_a_row} steps in a row, up to step {step}; {way_out}"
        )

    def summary(self) -> dict[str, Json]:
        """Skipped and rolled-back steps for the model's summary; empty if there were none."""
        found: dict[str, Json] = {"skipped": self.num_skipped} if self.num_skipped else {}
        if self.rolled_back:
            found["rolled_back"] = list(self.rolled_back)
            found["pass_over"] = self.spec.pass_over
        return found

    def state(self) -> dict[str, Tree]:
        counts = {"num_seen": self.num_seen, "num_skipped": self.num_skipped}
        return {**self.sums, **counts, "rolled_back": [*self.rolled_back]}

    def restore(self, state: Nested) -> None:
        """Restore `state()`; fields missing from older checkpoints keep their initial values."""
        self.sums = {name: float(state.get(name, 0.0)) for name in self.sums}
        self.num_seen, self.num_skipped = state.get("num_seen", 0), state.get("num_skipped", 0)
        self.rolled_back = list(state.get("rolled_back", []))
