"""Progressive learning: in its first steps a training's sequences, batches, learning rates and dropout grow
together (ERNIE 3.0, 2107.02137, section 3.3.2). Pure functions of the step; torch-free.

Sequences, batches and dropout grow in stages, since every new shape costs a compilation; learning rates with
every step.
"""

from typing import Any

from pydantic import Field

from atelier.engine.spec.base import Spec

TOKENS = 8  # a sequence has a multiple of so many
EIGHTHS = 8  # a batch grows by eighths of the whole one


class Progressive(Spec):
    steps: int = Field(
        default=0, ge=0, description="steps until all is as large as it gets; 0 = from the first"
    )
    stages: int = Field(default=4, ge=1, le=64, description="sizes on the way, each for as many steps")
    sequence: float = Field(
        default=0.25, gt=0, le=1, description="tokens of the first sequences, a share of the last"
    )
    batch: float = Field(
        default=0.25, gt=0, le=1, description="sequences of the first steps, a share of the last"
    )
    dropout: float = Field(
        default=0.0, ge=0, le=1, description="dropout of the first steps, a share of the last"
    )

    def stage(self, step: int) -> int:
        """The stage of a step, `stages` behind the last of them."""
        return self.stages if step >= self.steps else step * self.stages // self.steps

    def _grown(self, first: float, step: int) -> float:
        """A share that grows linearly from stage to stage."""
        return first + (1.0 - first) * self.stage(step) / self.stages

    def sequence_at(self, step: int, sequence: int) -> int:
        """Tokens a sequence."""
        wanted = round(self._grown(self.sequence, step) * sequence / TOKENS) * TOKENS
        return min(sequence, max(TOKENS, wanted))

    def batch_at(self, step: int, batch: int) -> int:
        """Sequences a step, in whole eighths of the batch where it has them."""
        unit = batch // EIGHTHS if batch % EIGHTHS == 0 else 1
        return min(batch, max(unit, round(self._grown(self.batch, step) * batch / unit) * unit))

    def dropout_at(self, step: int) -> float:
        """What dropout is multiplied by."""
        return self._grown(self.dropout, step)

    def lr_at(self, step: int) -> float:
        """What learning rates are multiplied by."""
        return min(1.0, (step + 1) / (self.steps + 1)) if self.steps else 1.0

    def first_steps(self) -> list[int]:
        """The first step of each stage, that of the whole size included."""
        found = dict.fromkeys(-(-stage * self.steps // self.stages) for stage in range(self.stages + 1))
        return list(found) if self.steps else [0]

    def samples_before(self, step: int, batch: int) -> int:
        """Sequences of all steps before this one."""
        return self._total(step, lambda at: self.batch_at(at, batch))

    def tokens_before(self, step: int, batch: int, sequence: int) -> int:
        """Tokens of all steps before this one."""
        return self._total(step, lambda at: self.batch_at(at, batch) * self.sequence_at(at, sequence))

    def _total(self, step: int, size_at: Any) -> int:
        firsts = [first for first in self.first_steps() if first < step]
        ends = [*firsts[1:], step] if firsts else []
        return sum((end - first) * size_at(first) for first, end in zip(firsts, ends, strict=True))
