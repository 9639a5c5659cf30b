"""Schedules of learning rates, of objectives' weights and of the batch, as pure functions of the step. They
alone determine which steps depend on the length of training. Torch-free.
"""

import math
from bisect import bisect_right
from functools import lru_cache
from typing import Literal

from pydantic import Field, model_validator

from atelier.engine.config.base import Json, Kind, Spec, Step
from atelier.engine.config.error import ConfigError


class Schedule(Kind):
    """A learning-rate schedule. `constant`, `noam`, the stable part of `wsd` and a decay in tokens do not
    depend on the length of training; `cosine` and `linear` depend on it from the first step.
    """

    kind: Literal["constant", "linear", "cosine", "wsd", "noam"] = Field(
        default="wsd",
        description="constant, linear, cosine, wsd or noam (falls as 1/sqrt(step) after warm-up)",
    )
    warmup: int = Field(default=0, ge=0, description="steps of linear warm-up from the role's first step")
    decay: float = Field(default=0.2, gt=0, le=1, description="wsd: share of all steps in the final decay")
    floor: float = Field(default=0.0, ge=0, le=1, description="final lr, as a share of the peak")
    shape: Literal["linear", "exponential"] = Field(
        default="linear", description="wsd: shape of the decay, linear or exponential"
    )
    half_life: Step = Field(
        default=0.2,
        gt=0,
        description="exponential wsd: steps until lr halves, or a share of the decay's steps below 1",
    )

    warmup_tokens: float = Field(
        default=0.0, ge=0, description="tokens of linear warm-up from the role's first step, instead of steps"
    )
    decay_tokens: float = Field(
        default=0.0,
        ge=0,
        description="cosine, linear: tokens from the role's first step to the floor; 0 = until its last step",
    )

    @model_validator(mode="after")
    def _in_one_unit(self) -> "Schedule":
        if self.warmup and (self.warmup_tokens or self.decay_tokens):
            raise ValueError(
                f"warmup={self.warmup} counts steps, but other settings tokens; warmup_tokens counts tokens"
            )
        if self.decay_tokens and self.kind not in ("cosine", "linear"):
            raise ValueError(f"a {self.kind} schedule has no decay_tokens; cosine and linear have")
        if self.warmup_tokens and self.kind == "noam":
            raise ValueError("a noam schedule falls by steps; give warmup, not warmup_tokens")
        if self.decay_tokens and self.decay_tokens <= self.warmup_tokens:
            raise ValueError(
                f"decay_tokens={self.decay_tokens:g} are no more than warmup_tokens={self.warmup_tokens:g}"
            )
        return self

    @model_validator(mode="after")
    def _fits_its_kind(self) -> "Schedule":
        if self.is_endless and self.floor and not self.decay_tokens:
            raise ValueError(f"a {self.kind} schedule has no floor")
        fields = type(self).model_fields
        if self.shape == "linear" and self.half_life != fields["half_life"].default:
            raise ValueError("a linear decay has no half_life; shape=exponential has")
        if self.shape == "exponential" and self.kind != "wsd":
            raise ValueError(f"a {self.kind} schedule has no shape; kind=wsd has")
        if self.shape == "exponential" and self.floor:
            raise ValueError("an exponential decay has no floor: half_life sets its end")
        return self

    @property
    def is_endless(self) -> bool:
        """Whether no step's lr depends on the length of training."""
        return self.kind in ("constant", "noam") or self.decay_tokens > 0

    def branch_step(self, start: int, end: int) -> int:
        """The first step whose lr depends on `end`: `end` if none does, `start` if all do."""
        if self.is_endless:
            return end
        if self.kind == "wsd":
            return max(start, end - max(1, round(self.decay * (end - start))))
        return start

    @property
    def version(self) -> int:
        """2 with a floor above 0: the last step is exactly at it; version 1 ended one step before it."""
        return 2 if self.floor else self.VERSION

    def factor(self, step: int, start: int, end: int, tokens: float = 0.0) -> float:
        """lr at `step` (start <= step < end) as a share of the peak. WSD decays linearly (2405.18392) or
        halves every `half_life` (MiniCPM, 2404.06395, section 4.2: 0.5^((s - S) / T), S the last stable
        step). The last step is at the floor; without a floor, a linear decay ends one step above 0, where
        nothing would be learned. Noam (1706.03762, equation 3) peaks at the last step of warm-up.

        `tokens`: those of the role's steps before this one, which settings in tokens count; as in Megatron-LM
        the first step of a warm-up in tokens has lr 0.
        """
        done, short = step - start, 0 if self.floor else 1
        if self.decay_tokens:
            return self._factor_after(tokens)
        if self.warmup_tokens and tokens < self.warmup_tokens:
            return tokens / self.warmup_tokens
        warm = min(1.0, (done + 1) / (self.warmup + 1)) if self.warmup else 1.0
        if self.kind == "constant":
            return warm
        if self.kind == "noam":
            return warm * min(1.0, (self.warmup + 1) / (done + 1)) ** 0.5
        if self.kind == "wsd":
            first = self.branch_step(start, end)
            if self.shape == "exponential":
                halves = (step - first + 1) / self._half_life(end - first)
                return warm * (1.0 if step < first else 0.5**halves)
            left = 1.0 if step < first else (end - 1 + short - step) / (end - first + short)
            return warm * (self.floor + (1 - self.floor) * left)
        past, falling = done - self.warmup, end - start - self.warmup - 1 + short
        share = 0.0 if past < 0 else min(1.0, past / falling) if falling > 0 else 1.0
        fall = 1.0 - share if self.kind == "linear" else 0.5 * (1 + math.cos(math.pi * share))
        return warm * (self.floor + (1 - self.floor) * fall)

    def _factor_after(self, tokens: float) -> float:
        """lr after so many tokens as a share of the peak, for a decay in tokens: linear warm-up, then a
        cosine or a line to the floor.
        """
        if tokens < self.warmup_tokens:
            return tokens / self.warmup_tokens
        share = min(1.0, (tokens - self.warmup_tokens) / (self.decay_tokens - self.warmup_tokens))
        fall = 1.0 - share if self.kind == "linear" else 0.5 * (1 + math.cos(math.pi * share))
        return self.floor + (1 - self.floor) * fall

    def _half_life(self, decay: int) -> float:
        """Steps until lr halves, in a decay of `decay` steps."""
        return self.half_life if self.half_life >= 1 else self.half_life * decay

    def misfit(self, start: int, end: int) -> tuple[str, str]:
        """Problem and remedy if the warm-up does not fit before lr falls, so that peak or floor are not
        reached; ('', '') if it fits.
        """
        room = self.branch_step(start, end) - start if self.kind == "wsd" else end - start - 1
        if self.is_endless or self.warmup <= max(0, room):
            return "", ""
        falls = f"lr falls after {room} of its {end - start} steps"
        return f"{self.warmup} steps of warm-up, but {falls}", f"{max(0, room)} would fit, or more steps"

    def check(self, start: int, end: int, place: str) -> None:
        """Raise ConfigError if the warm-up does not fit. `place`: the schedule's configuration key."""
        problem, way_out = self.misfit(start, end)
        if problem:
            raise ConfigError(f"{place}.warmup", problem, way_out)

    def check_floor(self, start: int, end: int, place: str) -> None:
        """As `check`, but only if the schedule has a floor, which lr would not reach."""
        if self.floor:
            self.check(start, end, place)

    def trunk(self) -> dict[str, Json]:
        """Identity of the part that does not depend on the end; equal for `constant` and a trunk of `wsd`."""
        if self.decay_tokens:
            return self.as_identity()
        kind, tokens = self.kind if self.is_endless else "constant", self.warmup_tokens
        return {
            "kind": kind,
            **({"warmup": self.warmup} if self.warmup else {}),
            **({"warmup_tokens": tokens} if tokens else {}),
        }


class WeightSchedule(Kind):
    """Schedule of an objective's weight: `first` times the weight until `begin`, `last` times it from the
    step before `end` on, between them linear or half a cosine. Or, for an objective with a teacher,
    proportional to the teacher's measured lead. At weight 0 the objective is not computed.

    Steps are the role's own. Steps given as shares, and the default end, depend on where the role's training
    ends: they cut its trajectory, as a learning-rate decay does.
    """

    kind: Literal["constant", "linear", "cosine", "lead"] = Field(
        default="constant", description="constant, linear, cosine or lead"
    )
    nats: float = Field(default=0.0, ge=0, description="lead: the teacher's lead at which the weight is full")
    first: float = Field(default=1.0, ge=0, description="initial value, as a share of the weight")
    last: float = Field(default=0.0, ge=0, description="final value, as a share of the weight")
    begin: Step = Field(
        default=0, ge=0, description="first step of the change, or a share of the role's steps below 1"
    )
    end: Step = Field(
        default=0,
        ge=0,
        description="step after the change, or a share of the role's steps below 1; 0 = the end",
    )

    @model_validator(mode="after")
    def _moves(self) -> "WeightSchedule":
        if self.kind == "constant" and self != WeightSchedule.model_construct():
            raise ValueError("a constant weight does not move; kind=linear, cosine or lead does")
        if self.kind == "lead" and self != WeightSchedule.model_construct(kind="lead", nats=self.nats):
            raise ValueError("a weight that follows the teacher's lead has no steps; leave out all but nats")
        if (self.kind == "lead") != (self.nats > 0):
            raise ValueError(f"nats is {self.nats:g}; kind=lead needs it above 0, other kinds have none")
        return self

    @property
    def follows_lead(self) -> bool:
        return self.kind == "lead"

    @property
    def is_constant(self) -> bool:
        return self.kind == "constant"

    def span(self, start: int, end: int) -> tuple[int, int]:
        """The step from which the weight changes and the step before which it reaches `last`, for a role from
        `start` to `end`.
        """
        length = end - start
        first = self.begin if self.begin >= 1 else round(self.begin * length)
        after = length if not self.end else self.end if self.end >= 1 else round(self.end * length)
        return start + int(first), start + int(after)

    def branch_step(self, start: int, end: int) -> int:
        """The first step whose weight depends on `end`; `end` if none does."""
        is_absolute = self.end >= 1 and (self.begin >= 1 or not self.begin)
        has_none = self.is_constant or self.follows_lead or is_absolute
        return end if has_none else min(end, self.span(start, end)[0])

    def factor(self, step: int, start: int, end: int, lead: float = 0.0) -> float:
        """The weight at `step` (start <= step < end) as a share of `weight`. `lead`: the teacher's, in
        nats.
        """
        if self.is_constant:
            return 1.0
        if self.follows_lead:
            return min(1.0, max(0.0, lead / self.nats))
        begin, after = self.span(start, end)
        if step <= begin:
            return self.first
        if step >= after - 1:
            return self.last
        done = (step - begin) / (after - 1 - begin)
        share = done if self.kind == "linear" else 0.5 * (1 - math.cos(math.pi * done))
        return self.first + (self.last - self.first) * share

    def check(self, start: int, end: int, place: str) -> None:
        """Raise ConfigError if it does not change within the role's steps. `place`: its configuration key."""
        begin, after = self.span(start, end)
        if not self.is_constant and not self.follows_lead and not begin + 1 < after <= end:
            raise ConfigError(
                f"{place}.end",
                f"the weight moves from step {begin - start} to {after - start} of the role's {end - start}",
                "begin must be at least two steps before end, both within the role's steps",
            )


class RampUp(Spec):
    """Growth of the batch in equal steps, by samples, as Megatron-LM's --rampup-batch-size."""

    start: int = Field(default=0, ge=0, description="sequences of the first batches; 0 = no ramp")
    by: int = Field(default=0, ge=0, description="sequences by which a batch grows at each increment")
    samples: int = Field(
        default=0, ge=0, description="samples of the ramp, equally many at each size before the full batch"
    )

    @model_validator(mode="after")
    def _whole(self) -> "RampUp":
        given = (self.start, self.by, self.samples)
        if any(given) and not all(given):
            raise ValueError(
                f"rampup needs start, by and samples above 0, or none of them; given {self.start}, {self.by}"
                f" and {self.samples}"
            )
        return self

    @property
    def is_on(self) -> bool:
        return self.start > 0

    def misfit(self, batch: int) -> str:
        """The problem if no whole number of increments leads to the full batch; '' if one does."""
        if not self.is_on or (self.start < batch and (batch - self.start) % self.by == 0):
            return ""
        return f"rampup from {self.start} by {self.by} does not reach global_batch={batch}"

    def batch_after(self, samples: int, batch: int) -> int:
        """The batch after `samples` samples: start + by * floor(samples / r), r = samples of the ramp /
        number of increments, as in Megatron-LM (megatron/microbatches.py); `batch` from the ramp's end on.
        """
        if samples >= self.samples:
            return batch
        return self.start + self.by * (samples * ((batch - self.start) // self.by) // self.samples)

    def samples_before(self, step: int, batch: int) -> int:
        """Samples of all steps before `step`."""
        sizes = self.sizes(batch)
        first, seen, size = sizes[bisect_right(sizes, step, key=lambda each: each[0]) - 1]
        return seen + (step - first) * size

    def sizes(self, batch: int) -> tuple[tuple[int, int, int], ...]:
        """For each size of the ramp, the full one included: its first step, the samples before it, and its
        sequences. A size without a step is left out.
        """
        return _sizes(self.start, self.by, self.samples, batch)


@lru_cache(maxsize=64)
def _sizes(start: int, by: int, samples: int, batch: int) -> tuple[tuple[int, int, int], ...]:
    ramp, count = RampUp(start=start, by=by, samples=samples), (batch - start) // by
    step, seen, found = 0, 0, [(0, 0, start)]
    while found[-1][2] < batch:
        now = found[-1][2]
        number = (now - start) // by + 1
        until = -(-samples * number // count)  # the first count of samples with the next size
        steps = -(-(until - seen) // now)
        step, seen = step + steps, seen + steps * now
        found.append((step, seen, ramp.batch_after(seen, batch)))
    return tuple(found)
