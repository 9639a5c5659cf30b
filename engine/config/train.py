"""Training settings shared by all roles: length, batch, precision; growth in the first steps (progressive
learning, ERNIE 3.0, 2107.02137, section 3.3.2); handling of bad steps. Torch-free.
"""

from bisect import bisect_left
from collections.abc import Callable
from typing import Annotated, Any, Literal, cast

from pydantic import Field, model_validator
from pydantic.config import JsonDict

from atelier.engine.config.base import Count, Spec
from atelier.engine.config.batch import SHORTEST
from atelier.engine.config.error import ConfigError
from atelier.engine.config.registry import Objectives, Optim
from atelier.engine.config.schedule import RampUp
from atelier.engine.config.sections import filled, sections_of, with_sections

Precision = Literal["bf16", "fp32", "fp64", "fp8"]

HEALTH_LAYOUT: JsonDict = {"layout": True}
Bad = Literal["", "nan", "spike"]
Action = Literal["skip", "rollback", "stop"]


class Health(Spec):
    nan: Action = Field(
        default="skip",
        description=(
            "on a step with a non-finite loss or gradient: skip its update, rollback to a checkpoint"
            " before it, or stop; a role with a teacher skips instead of rolling back"
        ),
    )
    spike: Literal["off", "skip", "rollback", "stop"] = Field(
        default="off",
        description="on a step whose loss or gradient norm spikes: off, or as for nan",
    )
    spike_sigmas: float = Field(
        default=6.0,
        ge=0,
        description="spike: loss above its average by this many standard deviations and by spike_nats",
    )
    spike_nats: float = Field(default=0.5, ge=0, description="spike: nats above the average loss")
    spike_norm: float = Field(
        default=0.0, ge=0, description="spike: gradient norm as a multiple of its average; 0 = not checked"
    )
    spike_after: int = Field(default=20, ge=1, description="spike: number of first steps never judged")
    pass_over: int = Field(
        default=10,
        ge=1,
        description="rollback: steps, ending with the bad one, to skip the second time",
    )
    rollbacks: int = Field(
        default=3,
        ge=0,
        description="rollbacks of a role before its training stops",
        json_schema_extra=HEALTH_LAYOUT,
    )
    patience: int = Field(
        default=3,
        ge=1,
        description="skipped steps in a row before training stops",
        json_schema_extra=HEALTH_LAYOUT,
    )
    hang_s: Annotated[float, Field(ge=0)] | Literal["auto"] = Field(
        default="auto",
        description=(
            "restart the gang after this many seconds without progress of any rank; auto = 20 times the"
            " longest step, at least 600 s; 0 = never"
        ),
        json_schema_extra=HEALTH_LAYOUT,
    )
    digest_every: int = Field(
        default=0,
        ge=0,
        description="steps between comparisons of replicated weights; 0 = only before checkpoints",
        json_schema_extra=HEALTH_LAYOUT,
    )
    straggler: float = Field(
        default=2.0,
        ge=0,
        description="warn of a rank slower than the median rank by this factor; 0 = never",
        json_schema_extra=HEALTH_LAYOUT,
    )

    @property
    def rolls_back(self) -> bool:
        return "rollback" in (self.nan, self.spike)

    def action(self, bad: Bad, *, has_teacher: bool) -> Action:
        """The action for a bad step. A student skips instead of rolling back its teacher."""
        chosen = self.spike if bad == "spike" and self.spike != "off" else self.nan
        return "skip" if chosen == "rollback" and has_teacher else chosen


TOKENS = 8  # sequence lengths are multiples of it
EIGHTHS = 8  # a batch grows by eighths of the full one


class Progressive(Spec):
    steps: int = Field(default=0, ge=0, description="steps until everything has its full size; 0 = no growth")
    stages: int = Field(
        default=4, ge=1, le=64, description="number of smaller sizes, for equally many steps each"
    )
    sequence: float = Field(
        default=0.25, gt=0, le=1, description="first sequence length, as a share of the full length"
    )
    batch: float = Field(default=0.25, gt=0, le=1, description="first batch, as a share of the full batch")
    dropout: float = Field(
        default=0.0, ge=0, le=1, description="first dropout, as a share of the full dropout"
    )
    rampup: RampUp = Field(
        default=RampUp(), description="growth of the batch alone, in equal steps by samples; without `steps`"
    )

    @model_validator(mode="after")
    def _one_growth(self) -> "Progressive":
        if self.steps and self.rampup.is_on:
            raise ValueError(
                f"steps={self.steps} and rampup both let the batch grow; progressive.steps=0, or no rampup"
            )
        return self

    @property
    def grows(self) -> bool:
        return self.steps > 0 or self.rampup.is_on

    def stage(self, step: int) -> int:
        """The stage of a step; `stages` after the last stage."""
        return self.stages if step >= self.steps else step * self.stages // self.steps

    def _grown(self, first: float, step: int) -> float:
        """A share that grows linearly by stage."""
        return first + (1.0 - first) * self.stage(step) / self.stages

    def sequence_at(self, step: int, sequence: int) -> int:
        """Tokens per sequence."""
        wanted = round(self._grown(self.sequence, step) * sequence / TOKENS) * TOKENS
        return min(sequence, max(TOKENS, wanted))

    def batch_at(self, step: int, batch: int) -> int:
        """Sequences per step, in whole eighths of a batch that is divisible by 8."""
        if self.rampup.is_on:
            return next(size for first, _, size in reversed(self.rampup.sizes(batch)) if first <= step)
        unit = batch // EIGHTHS if batch % EIGHTHS == 0 else 1
        return min(batch, max(unit, round(self._grown(self.batch, step) * batch / unit) * unit))

    def dropout_at(self, step: int) -> float:
        """Factor of dropout."""
        return self._grown(self.dropout, step)

    def lr_at(self, step: int) -> float:
        """Factor of learning rates."""
        return min(1.0, (step + 1) / (self.steps + 1)) if self.steps else 1.0

    def first_steps(self, batch: int) -> list[int]:
        """The first step of each stage, the full size included, for a full batch of `batch` sequences."""
        if self.rampup.is_on:
            return [first for first, _, _ in self.rampup.sizes(batch)]
        found = dict.fromkeys(-(-stage * self.steps // self.stages) for stage in range(self.stages + 1))
        return list(found) if self.steps else [0]

    def samples_before(self, step: int, batch: int) -> int:
        """Sequences of all steps before `step`."""
        if self.rampup.is_on:
            return self.rampup.samples_before(step, batch)
        return self._total(step, batch, lambda at: self.batch_at(at, batch))

    def tokens_before(self, step: int, batch: int, sequence: int) -> int:
        """Tokens of all steps before `step`."""
        if self.rampup.is_on:
            return self.rampup.samples_before(step, batch) * sequence
        return self._total(step, batch, lambda at: self.batch_at(at, batch) * self.sequence_at(at, sequence))

    def _total(self, step: int, batch: int, size_at: Callable[[int], int]) -> int:
        firsts = [first for first in self.first_steps(batch) if first < step]
        ends = [*firsts[1:], step] if firsts else []
        return sum((end - first) * size_at(first) for first, end in zip(firsts, ends, strict=True))


class Ahead(Spec):
    role: str = Field(
        default="", description="role to train alone first; it continues from there; empty = none"
    )
    steps: int = Field(default=0, ge=0, description="steps of training alone")
    objective: Objectives = Field(
        default={},
        description=(
            "its objectives alone; empty = those of its own that need neither a teacher nor imitations"
        ),
    )
    optim: Optim | None = Field(default=None, description="its optimiser alone; none = the role's")

    @model_validator(mode="after")
    def _both(self) -> "Ahead":
        if self.role and not self.steps:
            raise ValueError(
                f"{self.role} is to be trained alone for 0 steps; give ahead.steps, or ahead=none"
            )
        return self


LAYOUT: JsonDict = {"layout": True}


@with_sections("train")
class Train(Spec):
    steps: int = Field(
        default=0, ge=0, description="optimiser steps; or give tokens", json_schema_extra=LAYOUT
    )  # where training ends: part of identity only through the schedule
    tokens: float = Field(
        default=0,
        ge=0,
        description="training tokens, rounded up to whole steps; or give steps",
        json_schema_extra=LAYOUT,
    )
    global_batch: int = Field(ge=1, description="sequences per step, over all ranks")
    micro_batch: Count | Literal["auto"] = Field(
        default="auto", description="sequences that a rank computes at once", json_schema_extra=LAYOUT
    )
    sequence: int = Field(ge=SHORTEST, description="tokens per sequence")
    precision: Precision = Field(
        default="bf16",
        description="arithmetic: bf16 (fp32 master weights), fp32, fp64, or fp8 (bf16 with float8 products"
        " in blocks; needs torchao and a supporting GPU)",
    )
    seed: int = Field(default=1, ge=0, description="seed of data order and initial weights")
    checkpoint_every: Count | Literal["auto"] = Field(
        default=100,
        description="steps between checkpoints; auto = from the failure rate of the pool's devices"
        " (engine/plan/goodput.py)",
        json_schema_extra=LAYOUT,
    )
    keep: int = Field(
        default=2,
        ge=0,
        description="checkpoints to keep besides those at branch points; 0 = none after the end",
        json_schema_extra=LAYOUT,
    )
    keep_every: int = Field(
        default=0,
        ge=0,
        description="keep checkpoints at multiples of this number of steps; 0 = none",
        json_schema_extra=LAYOUT,
    )
    keep_best: int = Field(
        default=0,
        ge=0,
        description="keep this many checkpoints of lowest held-out loss per trajectory; 0 = none",
        json_schema_extra=LAYOUT,
    )
    eval_every: int = Field(
        default=0,
        ge=0,
        description="steps between evaluations; 0 = at checkpoints",
        json_schema_extra=LAYOUT,
    )
    eval_sequences: int = Field(
        default=32, ge=1, description="held-out sequences per evaluation", json_schema_extra=LAYOUT
    )
    profile: int = Field(
        default=0,
        ge=0,
        description="steps to profile with torch, after a gang's first three; 0 = none",
        json_schema_extra=LAYOUT,
    )
    progressive: Progressive = Field(
        default=Progressive(),
        description="growth of sequences, batches, learning rates and dropout in the first steps",
    )
    health: Health = Field(default=Health(), description="handling of bad steps and ranks")

    @model_validator(mode="before")
    @classmethod
    def _filled(cls, given: Any) -> Any:
        """Add the settings that keys of extensions need."""
        return filled("train", given) if isinstance(given, dict) else given

    @model_validator(mode="after")
    def _length(self) -> "Train":
        if self.steps and self.tokens:
            raise ValueError(
                f"steps={self.steps} and tokens={self.tokens:g} are both given; set train.steps=0 to use"
                " tokens, or train.tokens=0 to use steps"
            )
        if not self.steps and not self.tokens:
            raise ValueError("give either steps or tokens (above 0)")
        return self

    @model_validator(mode="after")
    def _reached(self) -> "Train":
        if problem := self.progressive.rampup.misfit(self.global_batch):
            raise ValueError(f"progressive.{problem}; global_batch - start must be a multiple of by")
        return self

    @model_validator(mode="after")
    def _extended(self) -> "Train":
        for value in sections_of(self).values():
            value.check_section(self)
        return self

    @model_validator(mode="after")
    def _retention(self) -> "Train":
        if self.checkpoint_every == "auto":
            return self
        if self.keep_every % self.checkpoint_every:
            raise ValueError(
                f"keep_every={self.keep_every} is not a multiple of"
                f" checkpoint_every={self.checkpoint_every}, so most of these steps have no checkpoint"
            )
        if self.keep_best and self.eval_every and self.checkpoint_every % self.eval_every:
            raise ValueError(
                f"keep_best={self.keep_best} needs the held-out loss of every checkpoint, but "
                f"eval_every={self.eval_every} does not divide checkpoint_every={self.checkpoint_every}; "
                "eval_every=0 evaluates at checkpoints"
            )
        return self

    @property
    def save_every(self) -> int:
        """Steps between checkpoints. Raises ConfigError while it is `auto`."""
        if self.checkpoint_every == "auto":
            raise ConfigError("train.checkpoint_every", "is auto", "plan it against a pool first")
        return self.checkpoint_every

    @property
    def num_steps(self) -> int:
        if self.steps:
            return self.steps
        return self.steps_until(self.tokens)

    def steps_until(self, tokens: float) -> int:
        """The number of first steps that have read at least so many tokens."""
        grown, whole = self.first_steps()[-1], self.global_batch * self.sequence
        before = self.tokens_before(grown)
        if tokens >= before:
            return grown - (-int(tokens - before) // whole)
        return bisect_left(range(grown), tokens, key=self.tokens_before)

    def tokens_before(self, step: int) -> int:
        """Tokens of the rows of all steps before `step`."""
        return self.progressive.tokens_before(step, self.global_batch, self.sequence)

    def first_steps(self) -> list[int]:
        """The first step of each size of batches and rows, the full one included."""
        return self.progressive.first_steps(self.global_batch)

    def here(self) -> "Train":
        """The same settings, with this run's share of the sequences as the batch."""
        batch = self.global_batch
        for value in sections_of(self).values():
            batch = value.batch_here(batch)
        return self.model_copy(update={"global_batch": batch}) if batch != self.global_batch else self

    @property
    def arithmetic(self) -> Precision:
        """The precision in which this run computes; other sites of the training may have another."""
        precision: str = self.precision
        for value in sections_of(self).values():
            precision = value.arithmetic(precision)
        return cast(Precision, precision)

    def at(self, step: int) -> "Train":
        """The same settings, with the batch and sequence of this step."""
        sizes = {
            "global_batch": self.progressive.batch_at(step, self.global_batch),
            "sequence": self.progressive.sequence_at(step, self.sequence),
        }
        return self.model_copy(update=sizes) if self.progressive.grows else self
